#pragma once

#include <cstdint>

#include "checks.hpp"
#include "cuda/kernel.hpp"

// Kernels in which a thread has one column and a piece of the rows, so that it loads the column's
// parameters once. The pieces, and so the order of every sum, depend only on the number of rows.
// Included by .cu files alone.
namespace strata::ops::cuda {

/// Rows that are added in C in order, and that a thread normalises.
inline constexpr int kRunRows = 16;
/// Rows of one partial sum: runs, added in double.
inline constexpr int kPartRows = 4 * kRunRows;
/// Pieces of rows in a block: one for each warp.
inline constexpr int kPieces = kThreads / kWarp;

/// A thread's column and its piece of `kRows` rows.
template <int kRows>
struct Piece {
  __device__ Piece(std::int64_t rows, std::int64_t tiles)
      : number(blockIdx.x / tiles * kPieces + threadIdx.x / kWarp),
        column(blockIdx.x % tiles * kWarp + threadIdx.x % kWarp),
        first(number * kRows),
        end(first + kRows < rows ? first + kRows : rows) {}

  std::int64_t number;
  std::int64_t column;
  std::int64_t first;
  std::int64_t end;  ///< at most `first` for a piece past the last row
};

/// all / held, rounded up.
constexpr std::int64_t count_of(std::int64_t all, std::int64_t held) {
  return (all + held - 1) / held;
}

/// kernel(rows, columns, tiles, arguments...) with a thread for each Piece<kRows>.
template <int kRows, typename... Parameters, typename... Arguments>
void launch_pieces(Context& context, const char* name, const Rows& shape,
                   void (*kernel)(Parameters...), const Arguments&... arguments) {
  const std::int64_t tiles = count_of(shape.columns, kWarp);
  const std::int64_t blocks = count_of(count_of(shape.rows, kRows), kPieces) * tiles;
  launch(context, name, {blocks, kThreads, 0}, kernel, shape.rows, shape.columns, tiles,
         arguments...);
}

/// Two sums over a part's rows.
template <typename T>
struct Sums {
  T first;
  T second;
};

/// Adds term(row), of type Sums<C>, over rows [first, end): runs in C, runs in double.
template <typename C, typename Term>
__device__ Sums<double> sum_runs(std::int64_t first, std::int64_t end, const Term& term) {
  Sums<double> sums{0.0, 0.0};
  for (std::int64_t begin = first; begin < end; begin += kRunRows) {
    Sums<C> run{C{0}, C{0}};
#pragma unroll
    for (int i = 0; i < kRunRows; ++i) {
      if (begin + i < end) {
        const Sums<C> of_row = term(begin + i);
        run.first += of_row.first;
        run.second += of_row.second;
      }
    }
    sums.first += static_cast<double>(run.first);
    sums.second += static_cast<double>(run.second);
  }
  return sums;
}

}  // namespace strata::ops::cuda
