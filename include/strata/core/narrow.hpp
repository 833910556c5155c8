#pragma once

#include <cstdint>
#include <limits>

#include "strata/core/error.hpp"

namespace strata {

/// A 64-bit count as the `int` that MPI and BLAS take; `what` names it in the message.
[[nodiscard]] inline int checked_int(std::int64_t value, const char* what) {
  require(value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max(),
          "{} is {}, more than a 32-bit count holds", what, value);
  return static_cast<int>(value);
}

}  // namespace strata
