#include "strata/ops/attention.hpp"

#include "attention/cuda_attention.hpp"
#include "attention/cudnn_attention.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// Online softmax of a warp's rows: the maximum and the total of each row, and its accumulators.
template <int kChunks, typename C>
struct OnlineSoftmax {
  static constexpr int kRows = kRowsOfWarp<kChunks, C>;
  C largest[kRows];
  C total[kRows];
  C sums[kRows][kChunks];

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = -static_cast<C>(INFINITY);
      total[r] = C{0};
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        sums[r][chunk] = C{0};
      }
    }
  }

  /// Takes this lane's score of row r (minus infinity where masked) and returns its weight;
  /// rescales the accumulators when the row maximum grows. It is minus infinity until the row sees
  /// a key.
  __device__ C update(int r, C score) {
    C most = score;
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      most = larger(most, __shfl_xor_sync(kWholeWarp, most, distance));
    }
    const C before = largest[r];
    largest[r] = larger(before, most);
    // Avoids inf - inf.
    const C from = largest[r] == -static_cast<C>(INFINITY) ? C{0} : largest[r];
    const C factor = exponential(before - from);
    const C weight = exponential(score - from);
    C sum = weight;
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    }
    total[r] = fused(total[r], factor, sum);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      sums[r][chunk] *= factor;
    }
    return weight;
  }
};

/// One block for each tile of queries of one head.
template <int kChunks, typename Stored, typename Cap>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(AttentionShape shape, std::int64_t tiles, Compute<Stored> scale, Cap cap,
                   ForwardTensors<Stored> tensors) {
  using C = Compute<Stored>;
  constexpr int kRows = kRowsOfWarp<kChunks, C>;
  constexpr int kTile = kTileRows<kChunks, C>;
  const QueryTile tile(shape, tiles, kTile);
  const KeyValueRows<Stored> seen = key_value_rows(shape, tensors, tile.sequence, tile.kv_head);
  C* const query_tile = shared_memory<C>();
  C* const key_tile = query_tile + kTile * kTileStride<kChunks>;
  C* const value_tile = key_tile + kWarp * kTileStride<kChunks>;
  load_tile<kChunks, kTile, Stored>(qkv_rows(shape, tensors.qkv, tile, tile.query), tile.first,
                                    shape.tokens, shape.head_size, scale, query_tile);

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t queries =
      tile.first + kTile < shape.tokens ? tile.first + kTile : shape.tokens;
  const std::int64_t key_count = tensors.past + queries;
  // Of the tile's queries the first one sees the first key.
  const std::int64_t begin = tensors.visible.first(tile.sequence, tensors.past + tile.first);
  OnlineSoftmax<kChunks, C> softmax;
  for (std::int64_t key = begin / kWarp * kWarp; key < key_count; key += kWarp) {
    // All threads have read the previous tiles.
    __syncthreads();
    load_tile<kChunks, kWarp, Stored>(seen.keys, key, key_count, shape.head_size, C{1}, key_tile);
    load_tile<kChunks, kWarp, Stored>(seen.values, key, key_count, shape.head_size, C{1},
                                      value_tile);
    __syncthreads();
    C weights[kRows];
    dot_rows<kChunks>(query_tile, key_tile, weights);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t query = tensors.past + tile.first + warp * kRows + r;
      const bool counts = key + lane <= query && key + lane < key_count &&
                          key + lane >= tensors.visible.first(tile.sequence, query);
      cap(weights[r]);
      weights[r] = softmax.update(r, counts ? weights[r] : -static_cast<C>(INFINITY));
    }
    add_weighted_rows<kChunks>(weights, value_tile, softmax.sums);
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const C inverse = C{1} / softmax.total[r];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      softmax.sums[r][chunk] *= inverse;
    }
    const std::int64_t query = tile.first + warp * kRows + r;
    if (tensors.log_sums != nullptr && lane == 0 && query < shape.tokens) {
      tensors.log_sums[row_index(shape, tile.sequence, tile.head, query)] =
          softmax.largest[r] + log(softmax.total[r]);
    }
  }
  store_rows<kChunks, kRows, Stored>(output_rows(shape, tensors.y, tile.sequence, tile.head),
                                     tile.first, shape.tokens, shape.head_size, C{1}, softmax.sums);
}

template <typename Stored>
void forward(Context& context, const char* name, const AttentionShape& shape,
             const ForwardTensors<Stored>& tensors) {
  using C = Compute<Stored>;
  if constexpr (std::is_same_v<Stored, __nv_bfloat16>) {
    if (is_for_tensor_cores(shape.head_size)) {
      tensor_core_attention_forward(context, name, shape, tensors);
      return;
    }
  }
  with_chunks(shape.head_size, [&]<int kChunks>(std::integral_constant<int, kChunks>) {
    const std::int64_t tiles = tiles_of(shape.tokens, kTileRows<kChunks, C>);
    with_cap<C>(shape, 1.0, [&]<typename Cap>(const Cap& cap) {
      launch(context, name,
             {shape.sequences * shape.heads() * tiles, kThreads, tile_bytes<kChunks, C>(1)},
             forward_kernel<kChunks, Stored, Cap>, shape, tiles,
             static_cast<C>(shape.score_scale()), cap, tensors);
    });
  });
}

/// One thread for each element of a new key and its value.
template <typename Stored>
__global__ void append_kernel(std::int64_t count, AttentionShape shape, const Stored* qkv,
                              std::int64_t past, std::int64_t capacity, Stored* keys,
                              Stored* values) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  const std::int64_t column = i % shape.head_size;
  const std::int64_t token = i / shape.head_size % shape.tokens;
  const std::int64_t kv_head = i / shape.head_size / shape.tokens;
  const HeadRows<const Stored> from = qkv_rows(shape, qkv, 0, kv_head, shape.queries);
  const std::int64_t source = token * from.stride + column;
  const std::int64_t target = (kv_head * capacity + past + token) * shape.head_size + column;
  keys[target] = from.data[source];
  values[target] = from.data[source + shape.head_size];
}

/// Each sequence of a batch during generation is launched by itself.
AttentionShape of_one_sequence(AttentionShape shape) {
  shape.sequences = 1;
  return shape;
}

}  // namespace

void causal_attention_forward(Context& context, const AttentionShape& shape,
                              const ConstTensorView& qkv, const TensorView& y,
                              const TensorView& log_sums, const AttentionMask& mask) {
  if (run_by_cudnn<cudnn_attention_forward>(context, shape, qkv, y, log_sums, mask)) {
    return;
  }
  with_device_type(qkv.dtype(), [&]<typename Stored>(Stored) {
    forward<Stored>(context, "causal_attention_forward", shape,
                    {qkv.device<Stored>(), nullptr, nullptr, 0, 0, y.device<Stored>(),
                     log_sums.device<Compute<Stored>>(), seen_keys(shape, mask)});
  });
}

void cached_attention(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                      std::span<const KeyValueCache> caches, std::int64_t window,
                      const TensorView& y) {
  const AttentionShape one = of_one_sequence(shape);
  with_device_type(qkv.dtype(), [&]<typename Stored>(Stored) {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const KeyValueCache& cache = caches[i];
      const auto row = static_cast<std::int64_t>(i) * shape.tokens;
      forward<Stored>(
          context, "cached_attention", one,
          {qkv.device<Stored>() + row * shape.qkv_width(), cache.keys.device<Stored>(),
           cache.values.device<Stored>(), cache.keys.shape()[1], cache.past,
           y.device<Stored>() + row * shape.width(), nullptr, seen_keys(one, {.window = window})});
    }
  });
}

void append_to_cache(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                     std::span<const KeyValueCache> caches) {
  const AttentionShape one = of_one_sequence(shape);
  const std::int64_t count = one.kv_heads * one.tokens * one.head_size;
  with_device_type(qkv.dtype(), [&]<typename Stored>(Stored) {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const KeyValueCache& cache = caches[i];
      launch(context, "append_to_cache", grid_of(count), append_kernel<Stored>, count, one,
             qkv.device<Stored>() + static_cast<std::int64_t>(i) * one.tokens * one.qkv_width(),
             cache.past, cache.keys.shape()[1], cache.keys.device<Stored>(),
             cache.values.device<Stored>());
    }
  });
}

}  // namespace strata::ops::cuda
