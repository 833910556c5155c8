#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "strata/ops/matmul.hpp"
#include "strata/ops/parallel_for.hpp"

namespace strata::ops {

/// Columns that are summed at a time; their sums fit the L1 cache.
inline constexpr std::int64_t kSumColumns = 512;

/// out[j] = (or +=) term(0, j) + term(1, j) + ... for the columns [begin, end), at most
/// kSumColumns; rows in order.
template <typename T, typename Function>
void sum_columns(std::int64_t begin, std::int64_t end, std::int64_t rows, Accumulate accumulate,
                 T* out, const Function& term) {
  std::array<T, kSumColumns> sums{};
  T* const sum = sums.data();
  const std::int64_t count = end - begin;
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) {
      sum[j] += term(row, begin + j);
    }
  }
  for (std::int64_t j = 0; j < count; ++j) {
    out[begin + j] = accumulate == Accumulate::kAdd ? out[begin + j] + sum[j] : sum[j];
  }
}

/// The same for all columns, on the context's threads; columns share nothing.
template <typename T, typename Function>
void sum_over_rows(Context& context, std::int64_t rows, std::int64_t columns, Accumulate accumulate,
                   T* out, const Function& term) {
  parallel_for(context, columns, kSumColumns, [&](std::int64_t begin, std::int64_t end) {
    sum_columns(begin, end, rows, accumulate, out, term);
  });
}

}  // namespace strata::ops
