#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace strata::ops {

/// sums[j] += term(begin, j) + ... + term(end - 1, j) for each of `columns`: sums runs of 16 rows
/// in C, then the runs in double. The order depends only on the arguments.
template <typename C, typename Function>
void add_row_runs(std::int64_t begin, std::int64_t end, std::int64_t columns, double* sums,
                  const Function& term) {
  constexpr std::int64_t kRun = 16;
  constexpr std::int64_t kColumns = 256;
  for (std::int64_t tile = 0; tile < columns; tile += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - tile);
    for (std::int64_t first = begin; first < end; first += kRun) {
      std::array<C, kColumns> values;
      C* const run = values.data();
      std::fill_n(run, count, C{0});
      for (std::int64_t row = first; row < std::min(first + kRun, end); ++row) {
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) {
          run[j] += term(row, tile + j);
        }
      }
      double* const into = sums + tile;
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) {
        into[j] += static_cast<double>(run[j]);
      }
    }
  }
}

}  // namespace strata::ops
