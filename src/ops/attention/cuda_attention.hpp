#pragma once

#include <cmath>
#include <cstdint>

#include "strata/ops/attention.hpp"

#include "cuda/kernel.hpp"

// Shared by attention's GPU kernels. A block of kThreads threads holds a tile of kTileRows rows of
// one head, kRowsOfWarp in each warp, and iterates over tiles of kWarp rows of the other operand
// (queries against keys, or keys against queries), one row for each lane. A head's columns are
// zero-padded to kChunks warps' width; a lane holds every kWarp-th column. Included by .cu files
// alone.
namespace strata::ops::cuda {

/// Fewer for heads of more than 128 elements: the tiles of the backward pass then take 97 KiB in
/// float32 (of at most 99 in compute capability 8.6) and 161 KiB in float64 (of 163 in 8.0).
template <int kChunks, typename C>
inline constexpr int kRowsOfWarp = kChunks <= 4 ? 4 : 8 / static_cast<int>(sizeof(C));
template <int kChunks, typename C>
inline constexpr int kTileRows = kRowsOfWarp<kChunks, C>*(kThreads / kWarp);

/// Rows of one head, `stride` elements apart.
template <typename Stored>
struct HeadRows {
  Stored* data;
  std::int64_t stride;
};

/// The keys that queries see, each up to its own: AttentionMask on the GPU.
struct SeenKeys {
  const std::uint32_t* starts;  ///< may be null
  std::int64_t tokens;          ///< of a sequence
  std::int64_t window;

  __device__ bool all() const { return starts == nullptr && window == 0; }
  /// Never descends; queries past the sequence see what its last one does.
  __device__ std::int64_t first(std::int64_t sequence, std::int64_t query) const {
    std::int64_t seen = window > 0 && query >= window ? query - window + 1 : 0;
    if (starts != nullptr) {
      const std::int64_t start = starts[sequence * tokens + (query < tokens ? query : tokens - 1)];
      seen = start > seen ? start : seen;
    }
    return seen;
  }
};

inline SeenKeys seen_keys(const AttentionShape& shape, const AttentionMask& mask) {
  return {mask.document_starts.empty() ? nullptr : mask.document_starts.device<std::uint32_t>(),
          shape.tokens, mask.window};
}

/// The tensors of a forward pass: query i of a sequence follows `past` tokens and i queries.
template <typename Stored>
struct ForwardTensors {
  const Stored* qkv;
  /// Caches of kv_heads x capacity x head_size, or null where keys and values are those of qkv.
  const Stored* keys;
  const Stored* values;
  std::int64_t capacity;
  std::int64_t past;
  Stored* y;
  /// Null when not needed.
  Compute<Stored>* log_sums;
  SeenKeys visible;
};

template <typename Stored>
struct BackwardTensors {
  const Stored* qkv;
  const Stored* y;
  const Compute<Stored>* log_sums;
  const Stored* dy;
  Stored* dqkv;
  /// Sum of y dy of each row, indexed as log_sums.
  Compute<Stored>* corrections;
  SeenKeys visible;
};

/// The tile of queries that a block works on. Blocks count the tiles of one head, then heads, then
/// sequences. Tiles go from the last, which sees the most keys, to the first.
struct QueryTile {
  __device__ QueryTile(const AttentionShape& shape, std::int64_t tiles, int rows_of_tile)
      : number(tiles - 1 - blockIdx.x % tiles),
        first(number * rows_of_tile),
        head(blockIdx.x / tiles % shape.heads()),
        sequence(blockIdx.x / tiles / shape.heads()),
        kv_head(head / shape.queries),
        query(head % shape.queries) {}

  std::int64_t number;
  std::int64_t first;
  std::int64_t head;
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t query;  ///< of the key-value head
};

/// The tile of keys that a block works on, from the first, which the most queries see, to the last,
/// and which part of it, where so many blocks share one.
struct KeyTile {
  __device__ KeyTile(const AttentionShape& shape, std::int64_t tiles, int rows_of_tile,
                     int parts = 1)
      : part(static_cast<int>(blockIdx.x) % parts),
        number(blockIdx.x / parts % tiles),
        first(number * rows_of_tile),
        kv_head(blockIdx.x / parts / tiles % shape.kv_heads),
        sequence(blockIdx.x / parts / tiles / shape.kv_heads) {}

  int part;
  std::int64_t number;
  std::int64_t first;
  std::int64_t kv_head;
  std::int64_t sequence;
};

/// A head's rows of the fused tensor: query `index` of a key-value head, its key (index ==
/// queries), or its value (index == queries + 1).
template <typename Stored>
__device__ HeadRows<Stored> qkv_rows(const AttentionShape& shape, Stored* qkv,
                                     std::int64_t sequence, std::int64_t kv_head,
                                     std::int64_t index) {
  const std::int64_t width = shape.qkv_width();
  return {qkv + sequence * shape.tokens * width +
              (kv_head * (shape.queries + 2) + index) * shape.head_size,
          width};
}

/// The same of the key-value head that a block's tile belongs to.
template <typename Stored, typename Tile>
__device__ HeadRows<Stored> qkv_rows(const AttentionShape& shape, Stored* qkv, const Tile& tile,
                                     std::int64_t index) {
  return qkv_rows(shape, qkv, tile.sequence, tile.kv_head, index);
}

/// A key-value head's rows of keys and of values.
template <typename Stored>
struct KeyValueRows {
  HeadRows<const Stored> keys;
  HeadRows<const Stored> values;
};

template <typename Stored>
__device__ KeyValueRows<Stored> key_value_rows(const AttentionShape& shape,
                                               const ForwardTensors<Stored>& tensors,
                                               std::int64_t sequence, std::int64_t kv_head) {
  if (tensors.keys != nullptr) {
    const std::int64_t begin = kv_head * tensors.capacity * shape.head_size;
    return {{tensors.keys + begin, shape.head_size}, {tensors.values + begin, shape.head_size}};
  }
  return {qkv_rows(shape, tensors.qkv, sequence, kv_head, shape.queries),
          qkv_rows(shape, tensors.qkv, sequence, kv_head, shape.queries + 1)};
}

/// A query head's rows of the output.
template <typename Stored>
__device__ HeadRows<Stored> output_rows(const AttentionShape& shape, Stored* y,
                                        std::int64_t sequence, std::int64_t head) {
  const std::int64_t width = shape.width();
  return {y + sequence * shape.tokens * width + head * shape.head_size, width};
}

/// Index of a token's row in log_sums and corrections.
__device__ inline std::int64_t row_index(const AttentionShape& shape, std::int64_t sequence,
                                         std::int64_t head, std::int64_t token) {
  return (sequence * shape.heads() + head) * shape.tokens + token;
}

/// The block's dynamic shared memory.
template <typename T>
__device__ T* shared_memory() {
  // An extern array must have one type in all kernels.
  extern __shared__ __align__(16) double memory_of_block[];
  return reinterpret_cast<T*>(memory_of_block);
}

/// Row stride of a tile in shared memory; odd, so that lanes that read a column access different
/// banks.
template <int kChunks>
inline constexpr int kTileStride = kChunks* kWarp + 1;

/// Bytes of `own` tiles of kTileRows rows and two of kWarp rows.
template <int kChunks, typename C>
constexpr std::int64_t tile_bytes(int own) {
  return static_cast<std::int64_t>(own * kTileRows<kChunks, C> + 2 * kWarp) * kTileStride<kChunks> *
         static_cast<std::int64_t>(sizeof(C));
}

/// tile = scale * rows [first, first + kRows), 0 for rows from `end` on and columns from head_size
/// on.
template <int kChunks, int kRows, typename Stored>
__device__ void load_tile(const HeadRows<const Stored>& rows, std::int64_t first, std::int64_t end,
                          std::int64_t head_size, Compute<Stored> scale, Compute<Stored>* tile) {
  using C = Compute<Stored>;
  constexpr int kWidth = kChunks * kWarp;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth; i += kThreads) {
    const std::int64_t row = first + i / kWidth;
    const int column = i % kWidth;
    const bool exists = row < end && column < head_size;
    tile[i / kWidth * kTileStride<kChunks> + column] =
        exists ? value_of(rows.data[row * rows.stride + column]) * scale : C{0};
  }
}

/// dots[r] = row r of this warp in `rows` times this lane's row in `lanes`, columns in order.
template <int kChunks, int kRows, typename C>
__device__ void dot_rows(const C* rows, const C* lanes, C (&dots)[kRows]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const C* const own = rows + warp * kRows * kTileStride<kChunks>;
  const C* const other = lanes + lane * kTileStride<kChunks>;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    dots[r] = C{0};
  }
#pragma unroll 8
  for (int c = 0; c < kChunks * kWarp; ++c) {
    const C value = other[c];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      dots[r] = fused(own[r * kTileStride<kChunks> + c], value, dots[r]);
    }
  }
}

/// sums[r, .] += weights[r] of every lane times that lane's row in `lanes`, lanes in order.
template <int kChunks, int kRows, typename C>
__device__ void add_weighted_rows(const C (&weights)[kRows], const C* lanes,
                                  C (&sums)[kRows][kChunks]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 4
  for (int other = 0; other < kWarp; ++other) {
    C values[kChunks];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      values[chunk] = lanes[other * kTileStride<kChunks> + chunk * kWarp + lane];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const C weight = __shfl_sync(kWholeWarp, weights[r], other);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        sums[r][chunk] = fused(weight, values[chunk], sums[r][chunk]);
      }
    }
  }
}

/// Row `first` + r of this warp = scale * sums[r, .], where it is before `end`.
template <int kChunks, int kRows, typename Stored>
__device__ void store_rows(const HeadRows<Stored>& rows, std::int64_t first, std::int64_t end,
                           std::int64_t head_size, Compute<Stored> scale,
                           const Compute<Stored> (&sums)[kRows][kChunks]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + warp * kRows + r;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = chunk * kWarp + lane;
      if (row < end && column < head_size) {
        rows.data[row * rows.stride + column] = to_storage<Stored>(sums[r][chunk] * scale);
      }
    }
  }
}

__host__ __device__ inline std::int64_t tiles_of(std::int64_t rows, std::int64_t rows_of_tile) {
  return (rows + rows_of_tile - 1) / rows_of_tile;
}

/// Leaves scores as they are.
struct Uncapped {
  template <typename C>
  __device__ C operator()(C& /*score*/) const {
    return C{1};
  }
};

/// Caps a score and returns the slope: score = cap tanh(inner score).
template <typename C>
struct SoftCap {
  C cap;
  C inner;

  __device__ C operator()(C& score) const {
    const C part = tanh(score * inner);
    score = cap * part;
    return C{1} - part * part;
  }
};

/// Calls function(cap) with the cap of scores that `scale` is still to be applied to.
template <typename C, typename Function>
void with_cap(const AttentionShape& shape, double scale, const Function& function) {
  if (shape.softcap > 0.0) {
    function(SoftCap<C>{static_cast<C>(shape.softcap), static_cast<C>(scale / shape.softcap)});
  } else {
    function(Uncapped());
  }
}

/// The scale of scores after a cap that has applied it.
template <typename Cap>
float scale_after(const AttentionShape& shape) {
  return std::is_same_v<Cap, Uncapped> ? static_cast<float>(shape.score_scale()) : 1.0F;
}

/// Calls function(std::integral_constant<int, kChunks>) for heads of this size.
template <typename Function>
void with_chunks(std::int64_t head_size, const Function& function) {
  constexpr std::int64_t kLargest = 256;
  if (head_size > kLargest) {
    refuse_head(kLargest, head_size);
  }
  if (head_size <= kWarp) {
    function(std::integral_constant<int, 1>());
  } else if (head_size <= 2 * kWarp) {
    function(std::integral_constant<int, 2>());
  } else if (head_size <= 4 * kWarp) {
    function(std::integral_constant<int, 4>());
  } else {
    function(std::integral_constant<int, 8>());
  }
}

/// Whether heads of this size have kernels for tensor cores, in bfloat16.
inline bool is_for_tensor_cores(std::int64_t head_size) {
  return head_size == 64 || head_size == 128 || head_size == 256;
}

/// Attention on tensor cores. Pre: is_for_tensor_cores(shape.head_size).
void tensor_core_attention_forward(Context& context, const char* name, const AttentionShape& shape,
                                   const ForwardTensors<__nv_bfloat16>& tensors);
/// Pre: `corrections` is computed.
void tensor_core_attention_backward(Context& context, const AttentionShape& shape,
                                    const BackwardTensors<__nv_bfloat16>& tensors);

}  // namespace strata::ops::cuda
