#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/ops/matmul.hpp"

#include "cuda/kernel.hpp"

// Sums over rows: sums fixed blocks of rows in order, then adds the block sums in order, in double.
// The order of a column's sum depends only on the number of rows.
namespace strata::ops::cuda {

/// Rows that one thread adds.
inline constexpr std::int64_t kSumRows = 64;
/// Columns of a block of threads.
inline constexpr int kSumThreads = 128;

/// parts[block, j] = term(row, j) summed over the rows of a block.
template <typename C, typename Term>
__global__ void sum_blocks_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles,
                                  Term term, double* parts) {
  const std::int64_t block = blockIdx.x / tiles;
  const std::int64_t j = blockIdx.x % tiles * kSumThreads + threadIdx.x;
  if (j >= columns) {
    return;
  }
  const std::int64_t first = block * kSumRows;
  const std::int64_t end = first + kSumRows < rows ? first + kSumRows : rows;
  C sum{0};
  for (std::int64_t row = first; row < end; ++row) {
    sum += term(row, j);
  }
  parts[block * columns + j] = static_cast<double>(sum);
}

/// out[j] = (or +=) the sum over blocks of parts[block, j], added in order in the type of the
/// parts.
template <typename P, typename C>
__global__ void sum_parts_kernel(std::int64_t blocks, std::int64_t columns, const P* parts,
                                 bool adds, C* out) {
  const std::int64_t j = thread_number();
  if (j >= columns) {
    return;
  }
  P sum{0};
  for (std::int64_t block = 0; block < blocks; ++block) {
    sum += parts[block * columns + j];
  }
  const C rounded = static_cast<C>(sum);
  out[j] = adds ? out[j] + rounded : rounded;
}

/// out[j] = (or +=) term(0, j) + term(1, j) + ..., each term of type C. Uses the context's scratch.
template <typename C, typename Term>
void sum_over_rows(Context& context, const char* name, std::int64_t rows, std::int64_t columns,
                   Accumulate accumulate, C* out, const Term& term) {
  const std::int64_t blocks = (rows + kSumRows - 1) / kSumRows;
  const std::int64_t tiles = (columns + kSumThreads - 1) / kSumThreads;
  double* const parts = scratch_of<double>(context, blocks * columns);
  launch(context, name, {blocks * tiles, kSumThreads, 0}, sum_blocks_kernel<C, Term>, rows, columns,
         tiles, term, parts);
  launch(context, name, grid_of(columns), sum_parts_kernel<double, C>, blocks, columns, parts,
         accumulate == Accumulate::kAdd, out);
}

}  // namespace strata::ops::cuda
