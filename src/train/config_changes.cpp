#include "strata/train/config_changes.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::train {
namespace {

struct Setting {
  std::string key;
  std::string value;
};

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string_view::npos
             ? ""
             : std::string(text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1));
}

/// The settings of an ini file without comments. Lines of the same key, as layers, become one.
std::vector<Setting> settings_in(std::string_view text) {
  std::vector<Setting> settings;
  std::string section;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const std::string setting = trimmed(std::string_view(line).substr(0, line.find('#')));
    const std::size_t equals = setting.find('=');
    if (setting.starts_with('[')) {
      section = setting.substr(1, setting.find(']') - 1);
    } else if (equals != std::string::npos) {
      const std::string_view all = setting;
      Setting one{.key = fmt::format("{}.{}", section, trimmed(all.substr(0, equals))),
                  .value = trimmed(all.substr(equals + 1))};
      if (!settings.empty() && settings.back().key == one.key) {
        settings.back().value += ", " + one.value;
      } else {
        settings.push_back(std::move(one));
      }
    }
  }
  return settings;
}

}  // namespace

std::vector<std::string> config_changes(std::string_view before, std::string_view now) {
  const std::vector<Setting> earlier = settings_in(before);
  std::vector<std::string> changes;
  for (const Setting& setting : settings_in(now)) {
    const auto old = std::ranges::find(earlier, setting.key, &Setting::key);
    if (old != earlier.end() && switch_spelling(old->value) != setting.value &&
        setting.key != "run.dir" && setting.key != "run.resume") {
      const auto shown = [](const std::string& value) { return value.empty() ? "\"\"" : value; };
      changes.push_back(
          fmt::format("{}: {} -> {}", setting.key, shown(old->value), shown(setting.value)));
    }
  }
  return changes;
}

}  // namespace strata::train
