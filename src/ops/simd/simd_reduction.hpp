#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "strata/ops/parallel_for.hpp"

namespace strata::ops {

/// Chunk size of elementwise work, in elements.
inline constexpr std::int64_t kElementGrain = 16384;

/// Chunk size in rows with about kElementGrain elements.
inline std::int64_t row_grain(std::int64_t columns) {
  return std::max<std::int64_t>(1, kElementGrain / std::max<std::int64_t>(1, columns));
}

/// Calls function(row) for each row on the context's threads, in chunks of row_grain(columns).
/// Pre: as parallel_for().
template <typename Function>
void parallel_for_rows(Context& context, std::int64_t rows, std::int64_t columns,
                       const Function& function) {
  parallel_for(context, rows, row_grain(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      function(row);
    }
  });
}

/// Calls function(i) for each element i of `count` on the context's threads, in SIMD loops. Calls
/// do not depend on one another.
template <typename Function>
void for_each_element(Context& context, std::int64_t count, const Function& function) {
  parallel_for(context, count, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    // A copy that no other code knows stays in registers.
    const Function own = function;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      own(i);
    }
  });
}

/// Tree reduction of the first kLanes lanes: combines halves.
template <std::size_t kLanes, typename T, std::size_t kAll, typename Combine>
T tree_reduce(std::array<T, kAll>& lanes, const Combine& combine) {
  if constexpr (kLanes == 1) {
    return lanes[0];
  } else {
    // Constant lengths, so that the loops are unrolled.
    constexpr std::size_t kHalf = kLanes / 2;
    for (std::size_t lane = 0; lane < kHalf; ++lane) {
      lanes[lane] = combine(lanes[lane], lanes[lane + kHalf]);
    }
    return tree_reduce<kHalf>(lanes, combine);
  }
}

/// Sum of term(0) ... term(count - 1), each of type Term: sixteen interleaved partial sums (SIMD
/// lanes) in each run of 1024 terms; runs are added in double. The order depends only on `count`.
template <typename Term, typename Function>
double simd_sum(std::int64_t count, const Function& term) {
  constexpr std::int64_t kLanes = 16;
  constexpr std::int64_t kRun = 1024;
  double total = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += kRun) {
    const std::int64_t end = std::min(count, begin + kRun);
    const std::int64_t whole_end = begin + (end - begin) / kLanes * kLanes;
    std::array<Term, kLanes> lanes{};
    for (std::int64_t i = begin; i < whole_end; i += kLanes) {
#pragma omp simd
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[static_cast<std::size_t>(lane)] += term(i + lane);
      }
    }
    for (std::int64_t i = whole_end; i < end; ++i) {
      lanes[static_cast<std::size_t>(i - whole_end)] += term(i);
    }
    total += static_cast<double>(tree_reduce<kLanes>(lanes, [](Term a, Term b) { return a + b; }));
  }
  return total;
}

/// The maximum of term(0) ... term(count - 1), ignoring NaNs. Pre: count >= 1.
template <typename Term, typename Function>
Term simd_max(std::int64_t count, const Function& term) {
  constexpr std::int64_t kLanes = 16;
  std::array<Term, kLanes> lanes;
  lanes.fill(term(0));
  const std::int64_t whole_end = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole_end; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const Term value = term(i + lane);
      Term& largest = lanes[static_cast<std::size_t>(lane)];
      largest = value > largest ? value : largest;
    }
  }
  Term largest = *std::max_element(lanes.begin(), lanes.end());
  for (std::int64_t i = whole_end; i < count; ++i) {
    largest = std::max(largest, term(i));
  }
  return largest;
}

}  // namespace strata::ops
