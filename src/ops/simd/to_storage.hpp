#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "strata/core/dtype.hpp"

namespace strata::ops {

/// Converts a computed value to the stored type. A separate function, because GCC 12 does not
/// vectorise loops with class objects in their body.
template <typename T>
T to_storage(Compute<T> value) {
  return static_cast<T>(value);
}

/// to[i] = term(i), converted to the stored type, for i in [begin, end). Types narrower than the
/// compute type are converted in a second loop: one loop for both runs out of registers. Pre: of
/// `to`, term(i) reads only to[i].
template <typename T, typename Function>
void store_terms(T* to, std::int64_t begin, std::int64_t end, const Function& term) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      to[i] = term(i);
    }
  } else {
    constexpr std::int64_t kRun = 512;
    std::array<Compute<T>, kRun> terms;
    Compute<T>* const values = terms.data();
    for (; begin < end; begin += kRun) {
      const std::int64_t count = std::min(kRun, end - begin);
      T* const into = to + begin;
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        values[i] = term(begin + i);
      }
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        into[i] = to_storage<T>(values[i]);
      }
    }
  }
}

}  // namespace strata::ops
