#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "attention/cuda_attention.hpp"
#include "cuda/mma.hpp"

// Attention's tiles for tensor cores: rows of one head as bfloat16 in shared memory, and products
// with them. A block of kTensorCoreThreads threads holds a tile of kSide rows, 16 in each warp, and
// iterates over tiles of kOtherRows rows of the other operand (queries against keys, or keys
// against queries). Tensor cores accumulate in float32, 16 terms at a time, in order. Included by
// .cu files alone.
namespace strata::ops::cuda {

inline constexpr int kMatrixWarps = 4;
inline constexpr int kTensorCoreThreads = kMatrixWarps * kWarp;
/// Rows of a left factor, columns of two right factors, and their inner dimension.
inline constexpr int kMatrixRows = 16;
inline constexpr int kSide = kMatrixWarps * kMatrixRows;
/// Limited by shared memory and registers.
template <int kHead>
inline constexpr int kOtherRows = kHead <= 128 ? kSide : kSide / 2;
/// Columns of an accumulator.
inline constexpr int kSumColumns = 8;
/// Elements of a 16-byte piece.
inline constexpr int kPiece = 8;

/// Offset of a piece in a swizzled tile with rows of kHead elements: the same piece of 8
/// consecutive rows lies in different banks. Each 64 columns are swizzled by themselves.
template <int kHead>
__device__ int tile_offset(int row, int piece) {
  return row * kHead + (piece ^ row % 8) * kPiece;
}

__device__ inline int lane_number() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

/// Starts the asynchronous load of rows [first, first + kRows) into a tile; rows from `end` on
/// become 0. Unaligned rows are copied synchronously, element by element.
template <int kHead, int kRows = kSide>
__device__ void load_rows(const HeadRows<const __nv_bfloat16>& rows, std::int64_t first,
                          std::int64_t end, bool aligned, __nv_bfloat16* tile) {
  // A thread copies the same piece of each kColumns columns of every kStep-th row.
  constexpr int kColumns = std::min(kHead, 128);
  constexpr int kPieces = kColumns / kPiece;
  constexpr int kStep = kTensorCoreThreads / kPieces;
  static_assert(kStep % 8 == 0 && kColumns % (8 * kPiece) == 0);
  const int row = static_cast<int>(threadIdx.x) / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int count = static_cast<int>(end - first < kRows ? end - first : kRows);
  const __nv_bfloat16* source = rows.data + (first + row) * rows.stride + piece * kPiece;
  __nv_bfloat16* const target = tile + tile_offset<kHead>(row, piece);
  if (aligned) {
#pragma unroll 2
    for (int i = 0; i < kRows; i += kStep) {
      const bool exists = row + i < count;
#pragma unroll
      for (int column = 0; column < kHead; column += kColumns) {
        copy_async<kPiece * sizeof(__nv_bfloat16)>(target + i * kHead + column,
                                                   exists ? source + column : rows.data, exists);
      }
      source += kStep * rows.stride;
    }
    return;
  }
  for (int i = 0; i < kRows; i += kStep) {
    for (int column = 0; column < kHead; column += kColumns) {
      for (int e = 0; e < kPiece; ++e) {
        target[i * kHead + column + e] =
            row + i < count ? source[column + e] : to_storage<__nv_bfloat16>(0.0F);
      }
    }
    source += kStep * rows.stride;
  }
}

/// Rows and columns [.., .. + 16) of a tile.
template <int kHead>
__device__ LeftMatrix left_of(const __nv_bfloat16* tile, int row, int column) {
  const int lane = lane_number();
  LeftMatrix left;
  load_matrices(
      tile + tile_offset<kHead>(row + lane % kMatrixRows, column / kPiece + lane / kMatrixRows),
      left.pairs);
  return left;
}

/// Two right factors: the columns of the first are a tile's rows [row, row + 8), those of the
/// second the next 8; their rows are the tile's columns [column, column + 16).
template <int kHead>
__device__ void load_rights(const __nv_bfloat16* tile, int row, int column,
                            RightMatrix (&rights)[2]) {
  const int lane = lane_number();
  std::uint32_t pairs[4];
  load_matrices(
      tile + tile_offset<kHead>(row + lane % 8 + lane / 16 * 8, column / kPiece + lane / 8 % 2),
      pairs);
  rights[0] = {{pairs[0], pairs[1]}};
  rights[1] = {{pairs[2], pairs[3]}};
}

/// Two right factors: their rows are a tile's rows [row, row + 16), the columns of the first are
/// the tile's [column, column + 8), those of the second the next 8.
template <int kHead>
__device__ void load_transposed_rights(const __nv_bfloat16* tile, int row, int column,
                                       RightMatrix (&rights)[2]) {
  const int lane = lane_number();
  std::uint32_t pairs[4];
  load_transposed_matrices(
      tile + tile_offset<kHead>(row + lane % kMatrixRows, column / kPiece + lane / kMatrixRows),
      pairs);
  rights[0] = {{pairs[0], pairs[1]}};
  rights[1] = {{pairs[2], pairs[3]}};
}

/// dots[j] += left(k) times the transpose of the tile's rows [8 j, 8 j + 8), summed over k, blocks
/// of 16 columns.
template <int kHead, int kCount, typename Left>
__device__ void add_dots(const Left& left, const __nv_bfloat16* tile, SumMatrix (&dots)[kCount]) {
#pragma unroll 4
  for (int k = 0; k < kHead / kMatrixRows; ++k) {
    const LeftMatrix own = left(k);
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {
      RightMatrix rights[2];
      load_rights<kHead>(tile, j * kSumColumns, k * kMatrixRows, rights);
      multiply_add(own, rights[0], dots[j]);
      multiply_add(own, rights[1], dots[j + 1]);
    }
  }
}

/// sums += weights times the first 8 kCount rows and 8 kSums columns of a tile. The weights are
/// rounded to bfloat16.
template <int kHead, int kCount, int kSums>
__device__ void add_weighted(const SumMatrix (&weights)[kCount], const __nv_bfloat16* tile,
                             SumMatrix (&sums)[kSums]) {
#pragma unroll
  for (int k = 0; k < kCount / 2; ++k) {
    const LeftMatrix left = rounded_left(weights[2 * k], weights[2 * k + 1]);
#pragma unroll
    for (int j = 0; j < kSums; j += 2) {
      RightMatrix rights[2];
      load_transposed_rights<kHead>(tile, k * kMatrixRows, j * kSumColumns, rights);
      multiply_add(left, rights[0], sums[j]);
      multiply_add(left, rights[1], sums[j + 1]);
    }
  }
}

/// Row first + r = the 16 rows of kPieces pieces of sums in which row g is scaled by scales[0] and
/// g + 8 by scales[1], where it is before `end`. The warp's own 16 rows of a tile serve as staging
/// (their elements are lost), so that rows are written in 16-byte pieces.
template <int kHead, int kPieces>
__device__ void store_sums(const SumMatrix (&sums)[kPieces], const float (&scales)[2],
                           __nv_bfloat16* tile, const HeadRows<__nv_bfloat16>& rows,
                           std::int64_t first, std::int64_t end, bool aligned) {
  static_assert(kSumColumns == kPiece);
  const int lane = lane_number();
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t pair = rounded_pair(sums[j].sums[2 * half] * scales[half],
                                              sums[j].sums[2 * half + 1] * scales[half]);
      *reinterpret_cast<std::uint32_t*>(tile + tile_offset<kHead>(lane / 4 + half * 8, j) +
                                        lane % 4 * 2) = pair;
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < kMatrixRows * kPieces; i += kWarp) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    if (first + row < end) {
      const __nv_bfloat16* const source = tile + tile_offset<kHead>(row, piece);
      __nv_bfloat16* const target = rows.data + (first + row) * rows.stride + piece * kPiece;
      if (aligned) {
        *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
      } else {
        for (int e = 0; e < kPiece; ++e) {
          target[e] = source[e];
        }
      }
    }
  }
}

/// Keys before `first` in a tile of keys from `key` on.
__device__ inline int keys_before(std::int64_t first, std::int64_t key) {
  const std::int64_t before = first - key;
  return static_cast<int>(before < 0 ? 0 : before < kSide ? before : kSide);
}

/// Pipelines `count` tiles: load(i, stage) starts the load of tile i, use(i, stage) runs after it
/// has arrived. With two stages the load of a tile overlaps with the use of the previous one. Pre:
/// tile 0 is in stage 0, visible to all threads.
template <int kStages, typename Load, typename Use>
__device__ void over_tiles(int count, const Load& load, const Use& use) {
  static_assert(kStages == 1 || kStages == 2);
  for (int i = 0; i < count; ++i) {
    if (kStages == 2 && i + 1 < count) {
      load(i + 1, (i + 1) % kStages);
    }
    use(i, i % kStages);
    if (kStages == 1) {
      // All threads have read the tile.
      __syncthreads();
      if (i + 1 < count) {
        load(i + 1, 0);
      }
    }
    wait_for_copies();
    __syncthreads();
  }
}

/// Calls function(std::integral_constant<int, kHead>). Pre: is_for_tensor_cores(head_size).
template <typename Function>
void with_matrix_head(std::int64_t head_size, const Function& function) {
  if (head_size == 64) {
    function(std::integral_constant<int, 64>());
  } else if (head_size == 128) {
    function(std::integral_constant<int, 128>());
  } else {
    function(std::integral_constant<int, 256>());
  }
}

/// Whether all non-null addresses are aligned to a piece. Then so are the rows.
inline bool begin_at_pieces(std::initializer_list<const void*> tensors) {
  constexpr std::uintptr_t kBytes = kPiece * sizeof(__nv_bfloat16);
  return std::ranges::all_of(tensors, [](const void* tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor) % kBytes == 0;
  });
}

}  // namespace strata::ops::cuda
