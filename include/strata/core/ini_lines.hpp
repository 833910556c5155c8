#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strata {

/// A `key = value # comment` line of an ini file; the parts are trimmed.
struct IniLine {
  std::string key;  ///< "section.key"
  std::string value;
  std::string comment;
};

/// The lines of an ini file that have a key, in order.
[[nodiscard]] std::vector<IniLine> ini_lines(std::string_view text);

}  // namespace strata
