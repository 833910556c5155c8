#pragma once

#include <memory>

#include "strata/core/dtype.hpp"

namespace strata::ops {

/// *at = value, rounded to what is stored. An element is made in its place, since the compiler
/// (GCC 12) makes no vector code of the assignment of a class within `#pragma omp simd`.
template <typename Stored>
void put(Stored* at, Compute<Stored> value) {
  std::construct_at(at, static_cast<Stored>(value));
}
template <>
inline void put<BFloat16>(BFloat16* at, float value) {
  std::construct_at(at, value);
}

}  // namespace strata::ops
