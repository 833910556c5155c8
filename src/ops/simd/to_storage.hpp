#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "strata/core/dtype.hpp"

namespace strata::ops {

/// `value` as it is stored. A function of its own, for GCC 12 makes no vector code of a loop that
/// has an object of a class in its body.
template <typename T>
T to_storage(Compute<T> value) {
  return static_cast<T>(value);
}

/// to[i] = term(i), rounded to what is stored, for i in [begin, end). What is narrower than what is
/// computed in is rounded in a loop of its own: a loop that does both runs out of registers.
/// Pre: term(i) reads nothing of `to` but to[i].
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
