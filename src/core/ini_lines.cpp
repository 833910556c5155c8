#include "strata/core/ini_lines.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata {

std::vector<IniLine> ini_lines(std::string_view text,
                               const std::function<void(std::string_view line)>& refuse) {
  std::vector<IniLine> lines;
  std::string section;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t hash = std::min(line.find('#'), line.size());
    const std::string_view setting = trimmed(line.substr(0, hash));
    const std::size_t equals = setting.find('=');
    if (setting.starts_with('[') && setting.ends_with(']')) {
      section = fmt::format("{}.", setting.substr(1, setting.size() - 2));
    } else if (equals != std::string_view::npos) {
      lines.push_back(
          {.key = fmt::format("{}{}", section, trimmed(setting.substr(0, equals))),
           .value = std::string(trimmed(setting.substr(equals + 1))),
           .comment = std::string(trimmed(line.substr(std::min(hash + 1, line.size()))))});
    } else if (refuse && !setting.empty()) {
      refuse(setting);
    }
  }
  return lines;
}

}  // namespace strata
