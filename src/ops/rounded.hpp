#pragma once

#include "strata/core/dtype.hpp"

namespace strata::ops {

/// `value` as it is stored. A function of its own, for GCC 12 makes no vector code of a loop that
/// has an object of a class in its body.
template <typename T>
T rounded(Compute<T> value) {
  return static_cast<T>(value);
}

}  // namespace strata::ops
