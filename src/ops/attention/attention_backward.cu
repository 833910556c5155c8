#include "strata/ops/attention.hpp"

#include "attention/cuda_attention.hpp"
#include "attention/cudnn_attention.hpp"
#include "cuda/ops.hpp"

// Three kernels compute the gradient without atomics: dy y of each row; the gradients of keys and
// values, one block for each tile of keys; the gradient of queries, one block for each tile of
// queries. Scores are recomputed in both.
namespace strata::ops::cuda {
namespace {

/// One warp for each row of a head.
template <typename Stored>
__global__ void __launch_bounds__(kThreads)
    corrections_kernel(std::int64_t count, AttentionShape shape, BackwardTensors<Stored> tensors) {
  using C = Compute<Stored>;
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= count) {
    return;
  }
  const std::int64_t heads = shape.heads();
  const std::int64_t token = index % shape.tokens;
  const std::int64_t head = index / shape.tokens % heads;
  const std::int64_t sequence = index / shape.tokens / heads;
  const std::int64_t first = ((sequence * shape.tokens + token) * heads + head) * shape.head_size;
  C sum{0};
  for (std::int64_t i = threadIdx.x % kWarp; i < shape.head_size; i += kWarp) {
    sum = fused(value_of(tensors.y[first + i]), value_of(tensors.dy[first + i]), sum);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  }
  if (threadIdx.x % kWarp == 0) {
    tensors.corrections[index] = sum;
  }
}

/// A query's attention weight of a key and the gradient of the score; both 0 where masked.
template <typename C>
struct Weight {
  C weight;
  C dscore;
};

template <typename C, typename Cap>
__device__ Weight<C> weight_of(bool seen, const Cap& cap, C score, C dweight, C log_sum,
                               C correction) {
  if (!seen) {
    return {C{0}, C{0}};
  }
  const C slope = cap(score);
  const C weight = exponential(score - log_sum);
  return {weight, weight * (dweight - correction) * slope};
}

/// The tiles of keys and values, of queries and dy in a block's shared memory, of so many rows, and
/// a thread's place.
template <int kChunks, int kKeys, int kQueries, typename C>
struct BackwardTiles {
  C* const keys = shared_memory<C>();
  C* const values = keys + kKeys * kTileStride<kChunks>;
  C* const queries = values + kKeys * kTileStride<kChunks>;
  C* const dy = queries + kQueries * kTileStride<kChunks>;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
};

/// One block for each tile of keys of one key-value head: rows are keys, lanes are queries.
template <int kChunks, typename Stored, typename Cap>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(AttentionShape shape, std::int64_t tiles, Compute<Stored> scale, Cap cap,
                BackwardTensors<Stored> tensors) {
  using C = Compute<Stored>;
  const std::int64_t tokens = shape.tokens;
  const std::int64_t size = shape.head_size;
  constexpr int kRows = kRowsOfWarp<kChunks, C>;
  constexpr int kTile = kTileRows<kChunks, C>;
  const KeyTile tile(shape, tiles, kTile);
  const BackwardTiles<kChunks, kTile, kWarp, C> shared;
  load_tile<kChunks, kTile, Stored>(qkv_rows(shape, tensors.qkv, tile, shape.queries), tile.first,
                                    tokens, size, C{1}, shared.keys);
  load_tile<kChunks, kTile, Stored>(qkv_rows(shape, tensors.qkv, tile, shape.queries + 1),
                                    tile.first, tokens, size, C{1}, shared.values);

  C dkeys[kRows][kChunks] = {};
  C dvalues[kRows][kChunks] = {};
  for (std::int64_t query = 0; query < shape.queries; ++query) {
    const std::int64_t head = tile.kv_head * shape.queries + query;
    const std::int64_t sums = row_index(shape, tile.sequence, head, 0);
    // Of later tiles no query sees a key of this one.
    for (std::int64_t from = tile.first;
         from < tokens && tensors.visible.first(tile.sequence, from) < tile.first + kTile;
         from += kWarp) {
      // All threads have read the previous tiles.
      __syncthreads();
      // Scaling the queries also scales the scores and the gradient of the keys.
      load_tile<kChunks, kWarp, Stored>(qkv_rows(shape, tensors.qkv, tile, query), from, tokens,
                                        size, scale, shared.queries);
      load_tile<kChunks, kWarp, Stored>(output_rows(shape, tensors.dy, tile.sequence, head), from,
                                        tokens, size, C{1}, shared.dy);
      __syncthreads();
      C weights[kRows];
      C dscores[kRows];
      dot_rows<kChunks>(shared.keys, shared.queries, weights);
      dot_rows<kChunks>(shared.values, shared.dy, dscores);
      const std::int64_t token = from + shared.lane;
      const bool exists = token < tokens;
      const C log_sum = exists ? tensors.log_sums[sums + token] : C{0};
      const C correction = exists ? tensors.corrections[sums + token] : C{0};
      const std::int64_t first_seen = tensors.visible.first(tile.sequence, token);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t key = tile.first + shared.warp * kRows + r;
        const bool seen = exists && key <= token && key >= first_seen;
        const Weight<C> both = weight_of(seen, cap, weights[r], dscores[r], log_sum, correction);
        weights[r] = both.weight;
        dscores[r] = both.dscore;
      }
      add_weighted_rows<kChunks>(weights, shared.dy, dvalues);
      add_weighted_rows<kChunks>(dscores, shared.queries, dkeys);
    }
  }
  store_rows<kChunks, kRows, Stored>(qkv_rows(shape, tensors.dqkv, tile, shape.queries), tile.first,
                                     tokens, size, C{1}, dkeys);
  store_rows<kChunks, kRows, Stored>(qkv_rows(shape, tensors.dqkv, tile, shape.queries + 1),
                                     tile.first, tokens, size, C{1}, dvalues);
}

/// One block for each tile of queries of one head: rows are queries, lanes are keys.
template <int kChunks, typename Stored, typename Cap>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(AttentionShape shape, std::int64_t tiles, Compute<Stored> scale, Cap cap,
                   BackwardTensors<Stored> tensors) {
  using C = Compute<Stored>;
  const std::int64_t tokens = shape.tokens;
  const std::int64_t size = shape.head_size;
  constexpr int kRows = kRowsOfWarp<kChunks, C>;
  constexpr int kTile = kTileRows<kChunks, C>;
  const QueryTile tile(shape, tiles, kTile);
  const BackwardTiles<kChunks, kWarp, kTile, C> shared;
  load_tile<kChunks, kTile, Stored>(qkv_rows(shape, tensors.qkv, tile, tile.query), tile.first,
                                    tokens, size, scale, shared.queries);
  load_tile<kChunks, kTile, Stored>(output_rows(shape, tensors.dy, tile.sequence, tile.head),
                                    tile.first, tokens, size, C{1}, shared.dy);

  const std::int64_t sums = row_index(shape, tile.sequence, tile.head, 0);
  C log_sums[kRows];
  C corrections[kRows];
  std::int64_t first_seen[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t token = tile.first + shared.warp * kRows + r;
    log_sums[r] = token < tokens ? tensors.log_sums[sums + token] : C{0};
    corrections[r] = token < tokens ? tensors.corrections[sums + token] : C{0};
    first_seen[r] = tensors.visible.first(tile.sequence, token);
  }
  C dqueries[kRows][kChunks] = {};
  // Of the tile's queries the first one sees the first key.
  const std::int64_t begin = tensors.visible.first(tile.sequence, tile.first);
  for (std::int64_t key = begin / kWarp * kWarp; key <= tile.first; key += kWarp) {
    // All threads have read the previous tiles.
    __syncthreads();
    load_tile<kChunks, kWarp, Stored>(qkv_rows(shape, tensors.qkv, tile, shape.queries), key,
                                      tokens, size, C{1}, shared.keys);
    load_tile<kChunks, kWarp, Stored>(qkv_rows(shape, tensors.qkv, tile, shape.queries + 1), key,
                                      tokens, size, C{1}, shared.values);
    __syncthreads();
    C scores[kRows];
    C dscores[kRows];
    dot_rows<kChunks>(shared.queries, shared.keys, scores);
    dot_rows<kChunks>(shared.dy, shared.values, dscores);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t token = tile.first + shared.warp * kRows + r;
      const bool seen =
          token < tokens && key + shared.lane <= token && key + shared.lane >= first_seen[r];
      dscores[r] = weight_of(seen, cap, scores[r], dscores[r], log_sums[r], corrections[r]).dscore;
    }
    add_weighted_rows<kChunks>(dscores, shared.keys, dqueries);
  }
  store_rows<kChunks, kRows, Stored>(qkv_rows(shape, tensors.dqkv, tile, tile.query), tile.first,
                                     tokens, size, scale, dqueries);
}

}  // namespace

void causal_attention_backward(Context& context, const AttentionShape& shape,
                               const ConstTensorView& qkv, const ConstTensorView& y,
                               const ConstTensorView& log_sums, const ConstTensorView& dy,
                               const TensorView& dqkv, const AttentionMask& mask) {
  if (run_by_cudnn<cudnn_attention_backward>(context, shape, qkv, y, log_sums, dy, dqkv, mask)) {
    return;
  }
  const std::int64_t rows = shape.sequences * shape.heads() * shape.tokens;
  with_device_type(qkv.dtype(), [&]<typename Stored>(Stored) {
    using C = Compute<Stored>;
    const BackwardTensors<Stored> tensors{qkv.device<Stored>(),  y.device<Stored>(),
                                          log_sums.device<C>(),  dy.device<Stored>(),
                                          dqkv.device<Stored>(), scratch_of<C>(context, rows),
                                          seen_keys(shape, mask)};
    constexpr std::int64_t kWarps = kThreads / kWarp;
    launch(context, "attention's corrections", {(rows + kWarps - 1) / kWarps, kThreads, 0},
           corrections_kernel<Stored>, rows, shape, tensors);
    if constexpr (std::is_same_v<Stored, __nv_bfloat16>) {
      if (is_for_tensor_cores(shape.head_size)) {
        tensor_core_attention_backward(context, shape, tensors);
        return;
      }
    }
    with_chunks(shape.head_size, [&]<int kChunks>(std::integral_constant<int, kChunks>) {
      const std::int64_t tiles = tiles_of(shape.tokens, kTileRows<kChunks, C>);
      const std::int64_t shared = tile_bytes<kChunks, C>(2);
      const auto scale = static_cast<C>(shape.score_scale());
      with_cap<C>(shape, 1.0, [&]<typename Cap>(const Cap& cap) {
        launch(context, "attention's gradient of keys",
               {shape.sequences * shape.kv_heads * tiles, kThreads, shared},
               keys_kernel<kChunks, Stored, Cap>, shape, tiles, scale, cap, tensors);
        launch(context, "attention's gradient of queries",
               {shape.sequences * shape.heads() * tiles, kThreads, shared},
               queries_kernel<kChunks, Stored, Cap>, shape, tiles, scale, cap, tensors);
      });
    });
  });
}

}  // namespace strata::ops::cuda
