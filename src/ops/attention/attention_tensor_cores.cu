#include <cmath>

#include "attention/cuda_attention.hpp"
#include "attention/tensor_core_tiles.hpp"

// Attention's forward pass on tensor cores. A block holds a tile of queries of one head, iterates
// over tiles of keys from the first on, and maintains an online softmax. A warp's scores stay in
// registers and become its weights there. Source: Dao, "FlashAttention-2", arXiv 2307.08691.
namespace strata::ops::cuda {
namespace {

using Stored = __nv_bfloat16;

constexpr int kStages = 2;

/// Elements of a tile of queries, and of one of keys or values.
template <int kHead>
constexpr int kQueryTile = kSide* kHead;
template <int kHead>
constexpr int kTile = kOtherRows<kHead>* kHead;

/// Online softmax state of a lane's rows g and g + 8 of 16: the row maximum, and the lane's part of
/// the row total.
struct RowState {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0.0F, 0.0F};
};

/// Online softmax of 16 rows: turns scores into weights 2^(factor (score - maximum)) and rescales
/// totals and accumulators when the row maximum grows.
template <int kCount, int kSums>
__device__ void online_softmax(float factor, SumMatrix (&scores)[kCount], RowState& state,
                               SumMatrix (&sums)[kSums]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      most = larger(most, larger(scores[j].sums[2 * half], scores[j].sums[2 * half + 1]));
    }
    most = larger(most, __shfl_xor_sync(kWholeWarp, most, 1));
    most = larger(most, __shfl_xor_sync(kWholeWarp, most, 2));
    const float before = state.largest[half];
    const float largest = larger(before, most);
    // Avoids inf - inf, where a row has seen no key yet.
    const float from = largest == -INFINITY ? 0.0F : largest;
    const float shrinks = exp2f((before - from) * factor);
    const float offset = -from * factor;
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[j].sums[i] = exp2f(fused(scores[j].sums[i], factor, offset));
        sum += scores[j].sums[i];
      }
    }
    state.total[half] = fused(state.total[half], shrinks, sum);
    state.largest[half] = largest;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      sums[j].sums[2 * half] *= shrinks;
      sums[j].sums[2 * half + 1] *= shrinks;
    }
  }
}

/// Causal mask: sets the scores of keys after a row's query to minus infinity. `behind` is the
/// position of the first query minus that of the first key.
template <int kCount>
__device__ void mask_keys(int behind, SumMatrix (&scores)[kCount]) {
  const int lane = lane_number();
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = j * kSumColumns + lane % 4 * 2 + i % 2;
      if (key > behind + lane / 4 + i / 2 * 8) {
        scores[j].sums[i] = -INFINITY;
      }
    }
  }
}

/// Sets the scores of a tile's first hidden[0] keys in rows g, hidden[1] in rows g + 8, to minus
/// infinity.
template <int kCount>
__device__ void hide_keys(const int (&hidden)[2], SumMatrix (&scores)[kCount]) {
  const int lane = lane_number();
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j * kSumColumns + lane % 4 * 2 + i % 2 < hidden[i / 2]) {
        scores[j].sums[i] = -INFINITY;
      }
    }
  }
}

/// Attends a warp's rows to a tile of keys and values, with capped scores; queries(k) gives the
/// rows' columns [16 k, 16 k + 16). `behind` as in mask_keys(), of the warp's first query; `hidden`
/// as in hide_keys().
template <int kHead, typename Cap, typename Queries>
__device__ void attend(int behind, const int (&hidden)[2], float factor, const Cap& cap,
                       const Queries& queries, const Stored* keys, const Stored* values,
                       RowState& state, SumMatrix (&sums)[kHead / kSumColumns]) {
  constexpr int kKeys = kOtherRows<kHead>;
  SumMatrix scores[kKeys / kSumColumns] = {};
  add_dots<kHead>(queries, keys, scores);
#pragma unroll
  for (int j = 0; j < kKeys / kSumColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cap(scores[j].sums[i]);
    }
  }
  if (behind < kKeys - 1) {
    mask_keys(behind, scores);
  }
  if (hidden[0] > 0 || hidden[1] > 0) {
    hide_keys(hidden, scores);
  }
  online_softmax(factor, scores, state, sums);
  add_weighted<kHead>(scores, values, sums);
}

/// Writes a warp's 16 rows of y and of log_sums from query `first` on.
template <int kHead>
__device__ void finish(const AttentionShape& shape, const ForwardTensors<Stored>& tensors,
                       std::int64_t sequence, std::int64_t head, std::int64_t first, float scale,
                       bool aligned, const RowState& state,
                       const SumMatrix (&sums)[kHead / kSumColumns], Stored* tile) {
  const int lane = lane_number();
  float inverses[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = state.total[half];
    total += __shfl_xor_sync(kWholeWarp, total, 1);
    total += __shfl_xor_sync(kWholeWarp, total, 2);
    inverses[half] = 1.0F / total;
    const std::int64_t query = first + lane / 4 + half * 8;
    if (tensors.log_sums != nullptr && lane % 4 == 0 && query < shape.tokens) {
      tensors.log_sums[row_index(shape, sequence, head, query)] =
          fused(state.largest[half], scale, logf(total));
    }
  }
  store_sums<kHead>(sums, inverses, tile, output_rows(shape, tensors.y, sequence, head), first,
                    shape.tokens, aligned);
}

/// One block for each tile of queries of one head. The exponent applies `scale`, that of the scores
/// or 1 where the cap has applied it.
template <int kHead, typename Cap>
__global__ void __launch_bounds__(kTensorCoreThreads)
    forward_kernel(AttentionShape shape, std::int64_t tiles, float scale, Cap cap,
                   ForwardTensors<Stored> tensors, bool aligned) {
  constexpr int kKeys = kOtherRows<kHead>;
  const QueryTile tile(shape, tiles, kSide);
  const KeyValueRows<Stored> seen = key_value_rows(shape, tensors, tile.sequence, tile.kv_head);
  const std::int64_t end = tile.first + kSide < shape.tokens ? tile.first + kSide : shape.tokens;
  const std::int64_t key_count = tensors.past + end;

  Stored* const query_tile = shared_memory<Stored>();
  Stored* const stages = query_tile + kQueryTile<kHead>;
  // Of the tile's queries the first one sees the first key.
  const std::int64_t begin =
      tensors.visible.first(tile.sequence, tensors.past + tile.first) / kKeys * kKeys;
  const auto load = [&](int i, int stage) {
    const std::int64_t key = begin + static_cast<std::int64_t>(i) * kKeys;
    Stored* const keys = stages + stage * 2 * kTile<kHead>;
    load_rows<kHead, kKeys>(seen.keys, key, key_count, aligned, keys);
    load_rows<kHead, kKeys>(seen.values, key, key_count, aligned, keys + kTile<kHead>);
  };
  load_rows<kHead>(qkv_rows<const Stored>(shape, tensors.qkv, tile, tile.query), tile.first,
                   shape.tokens, aligned, query_tile);
  load(0, 0);
  wait_for_copies();
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kMatrixRows;
  const auto queries = [&](int k) { return left_of<kHead>(query_tile, warp_row, k * kMatrixRows); };
  const std::int64_t first_of_warp = tensors.past + tile.first + warp_row;
  std::int64_t first_seen[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    first_seen[half] =
        tensors.visible.first(tile.sequence, first_of_warp + lane_number() / 4 + half * 8);
  }
  const float factor = scale * static_cast<float>(M_LOG2E);
  RowState state;
  SumMatrix sums[kHead / kSumColumns] = {};
  const int count = static_cast<int>(tiles_of(key_count - begin, kKeys));
  over_tiles<kStages>(count, load, [&](int i, int stage) {
    const std::int64_t key = begin + static_cast<std::int64_t>(i) * kKeys;
    const std::int64_t behind = first_of_warp - key;
    const int hidden[2] = {keys_before(first_seen[0], key), keys_before(first_seen[1], key)};
    const Stored* const keys = stages + stage * 2 * kTile<kHead>;
    attend<kHead>(static_cast<int>(behind < kSide ? behind : kSide), hidden, factor, cap, queries,
                  keys, keys + kTile<kHead>, state, sums);
  });
  finish<kHead>(shape, tensors, tile.sequence, tile.head, tile.first + warp_row, scale, aligned,
                state, sums, query_tile + warp_row * kHead);
}

template <int kHead>
void forward(Context& context, const char* name, const AttentionShape& shape,
             const ForwardTensors<Stored>& tensors) {
  const std::int64_t tiles = tiles_of(shape.tokens, kSide);
  const bool aligned = begin_at_pieces({tensors.qkv, tensors.keys, tensors.values, tensors.y});
  constexpr std::int64_t kBytes = (kQueryTile<kHead> + kStages * 2 * kTile<kHead>)*sizeof(Stored);
  with_cap<float>(shape, shape.score_scale(), [&]<typename Cap>(const Cap& cap) {
    launch(context, name, {shape.sequences * shape.heads() * tiles, kTensorCoreThreads, kBytes},
           forward_kernel<kHead, Cap>, shape, tiles, scale_after<Cap>(shape), cap, tensors,
           aligned);
  });
}

}  // namespace

void tensor_core_attention_forward(Context& context, const char* name, const AttentionShape& shape,
                                   const ForwardTensors<Stored>& tensors) {
  with_matrix_head(shape.head_size, [&]<int kHead>(std::integral_constant<int, kHead>) {
    forward<kHead>(context, name, shape, tensors);
  });
}

}  // namespace strata::ops::cuda
