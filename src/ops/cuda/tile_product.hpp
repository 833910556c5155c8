#pragma once

#include <cstdint>

#include "cuda/kernel.hpp"

// Implicit GEMM: matrix products whose elements functions gather. Included by .cu files alone.
namespace strata::ops::cuda {

/// `groups` products of rows x summed by summed x columns.
struct TileProduct {
  std::int64_t groups = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t summed = 0;
  /// Split-k: terms that one block sums at most; 0 for all.
  std::int64_t piece = 0;

  [[nodiscard]] std::int64_t pieces() const {
    return piece == 0 ? 1 : (summed + piece - 1) / piece;
  }
};

/// Rows and columns of a block's tile, kOwn x kOwn of them for each thread, and the depth of a tile
/// in shared memory.
inline constexpr int kProductTile = 64;
inline constexpr int kOwn = 4;
inline constexpr int kProductDepth = 16;
static_assert(kProductTile / kOwn * (kProductTile / kOwn) == kThreads);

/// Thread (down, across) computes rows down, down + 16, ... and columns across, across + 16, ...,
/// each element summed over k in order.
template <typename C, typename Operands>
__global__ void __launch_bounds__(kThreads)
    tile_product_kernel(TileProduct product, std::int64_t tiles_down, std::int64_t tiles_across,
                        std::int64_t pieces, Operands operands) {
  constexpr int kSide = kProductTile / kOwn;
  __shared__ C left[kProductDepth][kProductTile + 1];
  __shared__ C right[kProductDepth][kProductTile + 1];
  std::int64_t block = blockIdx.x;
  const std::int64_t first_column = block % tiles_across * kProductTile;
  block /= tiles_across;
  const std::int64_t first_row = block % tiles_down * kProductTile;
  block /= tiles_down;
  const std::int64_t piece = block % pieces;
  const std::int64_t group = block / pieces;
  const std::int64_t begin = piece * product.piece;
  const std::int64_t end = product.piece == 0 || begin + product.piece > product.summed
                               ? product.summed
                               : begin + product.piece;
  const int thread = static_cast<int>(threadIdx.x);
  const int across = thread % kSide;
  const int down = thread / kSide;
  C sums[kOwn][kOwn] = {};
  for (std::int64_t first = begin; first < end; first += kProductDepth) {
    // Neighbouring threads load neighbours along k on the left, and neighbouring columns on the
    // right.
    for (int i = thread; i < kProductDepth * kProductTile; i += kThreads) {
      const int depth = i % kProductDepth;
      const std::int64_t row = first_row + i / kProductDepth;
      left[depth][i / kProductDepth] = first + depth < end && row < product.rows
                                           ? operands.left(group, row, first + depth)
                                           : C{0};
    }
    for (int i = thread; i < kProductDepth * kProductTile; i += kThreads) {
      const int depth = i / kProductTile;
      const std::int64_t column = first_column + i % kProductTile;
      right[depth][i % kProductTile] = first + depth < end && column < product.columns
                                           ? operands.right(group, first + depth, column)
                                           : C{0};
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kProductDepth; ++depth) {
      C of_column[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        of_column[j] = right[depth][across + j * kSide];
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const C of_row = left[depth][down + i * kSide];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          sums[i][j] = fused(of_row, of_column[j], sums[i][j]);
        }
      }
    }
    // All threads have read the tile before the next loads.
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const std::int64_t row = first_row + down + i * kSide;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const std::int64_t column = first_column + across + j * kSide;
      if (row < product.rows && column < product.columns) {
        operands.store(group, piece, row, column, sums[i][j]);
      }
    }
  }
}

/// operands.store(group, piece, row, column, sum over k in the piece of left(group, row, k)
/// right(group, k, column)), all of type C. An element's bits depend only on its row and column and
/// on the splits of the sum.
template <typename C, typename Operands>
void tile_product(Context& context, const char* name, const TileProduct& product,
                  const Operands& operands) {
  const std::int64_t down = (product.rows + kProductTile - 1) / kProductTile;
  const std::int64_t across = (product.columns + kProductTile - 1) / kProductTile;
  const std::int64_t pieces = product.pieces();
  launch(context, name, {product.groups * pieces * down * across, kThreads, 0},
         tile_product_kernel<C, Operands>, product, down, across, pieces, operands);
}

}  // namespace strata::ops::cuda
