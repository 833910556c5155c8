#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

/// A `key = value # comment` line of an ini file; the parts are trimmed.
struct IniLine {
  std::string key;  ///< "section.key", or "key" before the first section
  std::string value;
  std::string comment;
};

/// The lines of an ini file that have a key, in order. `refuse` gets each line that has neither a
/// key, a section nor a comment alone; without it, such lines are left out.
[[nodiscard]] std::vector<IniLine> ini_lines(
    std::string_view text, const std::function<void(std::string_view line)>& refuse = {});

}  // namespace strata
