#pragma once

#include <cstdint>

#include "checks.hpp"
#include "cuda/kernel.hpp"

// Kernels in which a thread has one column and a piece of the rows, so that it loads the column's
// parameters once. Included by .cu files alone.
namespace strata::ops::cuda {

/// Rows of a thread's piece.
inline constexpr int kPieceRows = 16;
/// Pieces of rows in a block: one for each warp.
inline constexpr int kPieces = kThreads / kWarp;

/// A thread's column and its piece of the rows.
struct Piece {
  __device__ Piece(std::int64_t rows, std::int64_t tiles)
      : number(blockIdx.x / tiles * kPieces + threadIdx.x / kWarp),
        column(blockIdx.x % tiles * kWarp + threadIdx.x % kWarp),
        first(number * kPieceRows),
        end(first + kPieceRows < rows ? first + kPieceRows : rows) {}

  std::int64_t number;
  std::int64_t column;
  std::int64_t first;
  std::int64_t end;  ///< at most `first` for a piece past the last row
};

/// kernel(rows, columns, tiles, arguments...) with a thread for each Piece.
template <typename... Parameters, typename... Arguments>
void launch_pieces(Context& context, const char* name, const Rows& shape,
                   void (*kernel)(Parameters...), const Arguments&... arguments) {
  const std::int64_t tiles = count_of(shape.columns, kWarp);
  const std::int64_t blocks = count_of(count_of(shape.rows, kPieceRows), kPieces) * tiles;
  launch(context, name, {blocks, kThreads, 0}, kernel, shape.rows, shape.columns, tiles,
         arguments...);
}

}  // namespace strata::ops::cuda
