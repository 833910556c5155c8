#pragma once

#include <cstdlib>
#include <string>

namespace strata {

/// The value of an environment variable; empty where it is not set.
[[nodiscard]] inline std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace strata
