#pragma once

#include <stdexcept>
#include <string>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

#include "files/user_file.hpp"

namespace strata::fuzz {

/// Calls `read`, which may refuse what it reads by strata's own errors. Returns 0.
template <typename Read>
int refused_or_read(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    static_cast<void>(printable_lines(error.what()));
  } catch (const io::BadInput& error) {
    static_cast<void>(printable_lines(error.what()));
  }
  return 0;
}

/// As refused_or_read(). Throws: std::logic_error where a refusal has more than one line.
template <typename Read>
int refused_in_one_line_or_read(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    if (const std::string line = printable_lines(error.what());
        line.find('\n') != std::string::npos) {
      throw std::logic_error("several lines: " + line);
    }
  }
  return 0;
}

}  // namespace strata::fuzz
