#include <algorithm>
#include <cmath>

#include "attention/cuda_attention.hpp"
#include "attention/tensor_core_tiles.hpp"

// Attention's gradients on tensor cores. One kernel computes those of keys and values (a block
// holds a tile of keys and iterates over the queries that see it), another those of queries (a
// block holds a tile of queries and iterates over the visible keys). Both recompute weights and
// score gradients in registers from log_sums. Source: Dao, "FlashAttention-2", arXiv 2307.08691.
namespace strata::ops::cuda {
namespace {

using Stored = __nv_bfloat16;

/// Pipeline stages in shared memory. Two stages of 128 columns would limit a multiprocessor to one
/// block (sm_80).
template <int kHead>
constexpr int kStages = kHead == 64 ? 2 : 1;

/// Elements of a tile that a block holds, and of one that it iterates over.
template <int kHead>
constexpr int kOwnTile = kSide* kHead;
template <int kHead>
constexpr int kTile = kOtherRows<kHead>* kHead;

/// Columns of scores that a warp computes at a time, limited by its registers: queries in the
/// gradients of keys and values, keys in those of queries.
template <int kHead>
constexpr int kQueriesAtOnce = kHead == 64 ? 32 : 16;
constexpr int kKeysAtOnce = 32;

/// Columns of the gradients of keys and values that a block computes, limited by its registers.
template <int kHead>
constexpr int kGradientColumns = std::min(kHead, 128);

constexpr float kLog2OfE = static_cast<float>(M_LOG2E);

/// The scale of the scores, and log2(e) times the scale that the cap has not applied, for base-2
/// exponentials.
struct Scales {
  float scale;
  float factor;
};

/// Turns a score into an attention weight, and the gradient of the weight into the gradient of the
/// score before its cap. Both are 0 where masked.
template <typename Cap>
__device__ void softmax_backward(bool seen, float factor, const Cap& cap, float log_sum,
                                 float correction, float& score, float& gradient) {
  const float slope = cap(score);
  score = seen ? exp2f(fused(score, factor, -log_sum * kLog2OfE)) : 0.0F;
  gradient = seen ? score * (gradient - correction) * slope : 0.0F;
}

/// A tile of queries with their gradients of y, log_sums and corrections, in this order.
template <int kHead>
struct QueryStage {
  Stored* queries;
  Stored* dy;
  float* log_sums;
  float* corrections;

  static constexpr int kRows = kOtherRows<kHead>;
  static constexpr int kElements = 2 * kTile<kHead> + 2 * kRows * 2;
  __device__ explicit QueryStage(Stored* memory)
      : queries(memory),
        dy(memory + kTile<kHead>),
        log_sums(reinterpret_cast<float*>(memory + 2 * kTile<kHead>)),
        corrections(log_sums + kRows) {}
};

/// Starts the asynchronous load of queries [from, from + kOtherRows) of query head `query` of a
/// key-value head.
template <int kHead>
__device__ void load_queries(const AttentionShape& shape, const BackwardTensors<Stored>& tensors,
                             const KeyTile& keys, std::int64_t query, std::int64_t from,
                             bool aligned, const QueryStage<kHead>& stage) {
  constexpr int kRows = kOtherRows<kHead>;
  const std::int64_t head = keys.kv_head * shape.queries + query;
  load_rows<kHead, kRows>(qkv_rows(shape, tensors.qkv, keys, query), from, shape.tokens, aligned,
                          stage.queries);
  load_rows<kHead, kRows>(output_rows(shape, tensors.dy, keys.sequence, head), from, shape.tokens,
                          aligned, stage.dy);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = row_index(shape, keys.sequence, head, from + thread % kRows);
  const bool exists = from + thread % kRows < shape.tokens;
  // So many threads for each.
  static_assert(kTensorCoreThreads >= 2 * kRows);
  if (kTensorCoreThreads == 2 * kRows || thread < 2 * kRows) {
    const float* const source = thread < kRows ? tensors.log_sums : tensors.corrections;
    copy_async<sizeof(float)>(stage.log_sums + thread, exists ? source + row : source, exists);
  }
}

/// Adds the gradients of a warp's 16 keys, columns from `column` on, from queries [part, part +
/// kQueriesAtOnce) of a stage. `ahead` is the position of the first query minus that of the first
/// key. hidden(query): the first of the 16 keys that a query of the part does not see.
template <int kHead, typename Cap, typename Hidden>
__device__ void add_key_gradients(const Stored* keys, const Stored* values,
                                  const QueryStage<kHead>& stage, int column, int part, int ahead,
                                  const Hidden& hidden, int warp_row, float factor, const Cap& cap,
                                  SumMatrix (&dkeys)[kGradientColumns<kHead> / kSumColumns],
                                  SumMatrix (&dvalues)[kGradientColumns<kHead> / kSumColumns]) {
  const int lane = lane_number();
  const Stored* const queries = stage.queries + part * kHead;
  const Stored* const dy = stage.dy + part * kHead;
  constexpr int kCount = kQueriesAtOnce<kHead> / kSumColumns;
  SumMatrix weights[kCount] = {};
  SumMatrix dscores[kCount] = {};
  add_dots<kHead>([&](int k) { return left_of<kHead>(keys, warp_row, k * kMatrixRows); }, queries,
                  weights);
  add_dots<kHead>([&](int k) { return left_of<kHead>(values, warp_row, k * kMatrixRows); }, dy,
                  dscores);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = j * kSumColumns + lane % 4 * 2 + i % 2;
      const int key = lane / 4 + i / 2 * 8;
      const bool seen = key <= query + ahead && key >= hidden(query);
      softmax_backward(seen, factor, cap, stage.log_sums[part + query],
                       stage.corrections[part + query], weights[j].sums[i], dscores[j].sums[i]);
    }
  }
  add_weighted<kHead>(weights, dy + column, dvalues);
  add_weighted<kHead>(dscores, queries + column, dkeys);
}

/// A block for each kGradientColumns columns of each tile of keys of one key-value head.
template <int kHead, typename Cap>
__global__ void __launch_bounds__(kTensorCoreThreads)
    keys_kernel(AttentionShape shape, std::int64_t tiles, Scales scales, Cap cap,
                BackwardTensors<Stored> tensors, bool aligned) {
  constexpr int kColumns = kGradientColumns<kHead>;
  constexpr int kQueries = kOtherRows<kHead>;
  const KeyTile tile(shape, tiles, kSide, kHead / kColumns);
  const int column = tile.part * kColumns;
  Stored* const keys = shared_memory<Stored>();
  Stored* const values = keys + kOwnTile<kHead>;
  Stored* const stages = values + kOwnTile<kHead>;
  load_rows<kHead>(qkv_rows(shape, tensors.qkv, tile, shape.queries), tile.first, shape.tokens,
                   aligned, keys);
  load_rows<kHead>(qkv_rows(shape, tensors.qkv, tile, shape.queries + 1), tile.first, shape.tokens,
                   aligned, values);
  // For each query head in order, the tiles from the diagonal on whose queries see a key.
  int tiles_of_head = static_cast<int>(tiles_of(shape.tokens - tile.first, kQueries));
  while (!tensors.visible.all() && tiles_of_head > 1 &&
         tensors.visible.first(tile.sequence, tile.first + (tiles_of_head - 1) * kQueries) >=
             tile.first + kSide) {
    --tiles_of_head;
  }
  const auto stage_of = [&](int stage) {
    return QueryStage<kHead>(stages + stage * QueryStage<kHead>::kElements);
  };
  const auto load = [&](int i, int stage) {
    load_queries<kHead>(shape, tensors, tile, i / tiles_of_head,
                        tile.first + static_cast<std::int64_t>(i % tiles_of_head) * kQueries,
                        aligned, stage_of(stage));
  };
  load(0, 0);
  wait_for_copies();
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kMatrixRows;
  SumMatrix dkeys[kColumns / kSumColumns] = {};
  SumMatrix dvalues[kColumns / kSumColumns] = {};
  over_tiles<kStages<kHead>>(
      tiles_of_head * static_cast<int>(shape.queries), load, [&](int i, int stage) {
        const int number = i % tiles_of_head;
        const std::int64_t first_query = tile.first + static_cast<std::int64_t>(number) * kQueries;
        constexpr int kCount = kQueriesAtOnce<kHead>;
        constexpr int kParts = kSide / kQueries;
#pragma unroll 1
        for (int part = 0; part < kQueries; part += kCount) {
          // Queries after the tile's keys see all of them.
          const int ahead = number < kParts ? number % kParts * kQueries + part - warp_row : kSide;
          // Otherwise all scores are masked.
          if (ahead + kCount > 0) {
            const auto hidden = [&](int query) {
              return tensors.visible.all()
                         ? 0
                         : keys_before(
                               tensors.visible.first(tile.sequence, first_query + part + query),
                               tile.first + warp_row);
            };
            add_key_gradients<kHead>(keys, values, stage_of(stage), column, part, ahead, hidden,
                                     warp_row, scales.factor, cap, dkeys, dvalues);
          }
        }
      });

  // Each warp has its own rows of the tiles.
  store_sums<kHead>(dkeys, {scales.scale, scales.scale}, keys + warp_row * kHead,
                    qkv_rows(shape, tensors.dqkv + column, tile, shape.queries),
                    tile.first + warp_row, shape.tokens, aligned);
  store_sums<kHead>(dvalues, {1.0F, 1.0F}, values + warp_row * kHead,
                    qkv_rows(shape, tensors.dqkv + column, tile, shape.queries + 1),
                    tile.first + warp_row, shape.tokens, aligned);
}

/// A lane's rows g and g + 8 of 16.
struct RowSums {
  float log_sums[2];
  float corrections[2];
  std::int64_t first_seen[2];
};

/// Adds the gradients of a warp's 16 queries from keys [part, part + kKeysAtOnce) of a tile.
/// `behind` is the position of the first query minus that of the first key, `first_key` the latter.
template <int kHead, typename Cap>
__device__ void add_query_gradients(const Stored* queries, const Stored* dy, const Stored* keys,
                                    const Stored* values, int behind, std::int64_t first_key,
                                    int warp_row, float factor, const Cap& cap, const RowSums& rows,
                                    SumMatrix (&dqueries)[kHead / kSumColumns]) {
  const int lane = lane_number();
  constexpr int kCount = kKeysAtOnce / kSumColumns;
  SumMatrix scores[kCount] = {};
  SumMatrix dscores[kCount] = {};
  add_dots<kHead>([&](int k) { return left_of<kHead>(queries, warp_row, k * kMatrixRows); }, keys,
                  scores);
  add_dots<kHead>([&](int k) { return left_of<kHead>(dy, warp_row, k * kMatrixRows); }, values,
                  dscores);
  const int hidden[2] = {keys_before(rows.first_seen[0], first_key),
                         keys_before(rows.first_seen[1], first_key)};
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = j * kSumColumns + lane % 4 * 2 + i % 2;
      const bool seen = key <= behind + lane / 4 + i / 2 * 8 && key >= hidden[i / 2];
      softmax_backward(seen, factor, cap, rows.log_sums[i / 2], rows.corrections[i / 2],
                       scores[j].sums[i], dscores[j].sums[i]);
    }
  }
  add_weighted<kHead>(dscores, keys, dqueries);
}

/// One block for each tile of queries of one head.
template <int kHead, typename Cap>
__global__ void __launch_bounds__(kTensorCoreThreads)
    queries_kernel(AttentionShape shape, std::int64_t tiles, Scales scales, Cap cap,
                   BackwardTensors<Stored> tensors, bool aligned) {
  constexpr int kKeys = kOtherRows<kHead>;
  const QueryTile tile(shape, tiles, kSide);
  // Of the tile's queries the first one sees the first key.
  const std::int64_t begin = tensors.visible.first(tile.sequence, tile.first) / kKeys * kKeys;
  constexpr int kParts = kSide / kKeys;
  const int before = static_cast<int>((tile.first - begin) / kKeys);
  Stored* const queries = shared_memory<Stored>();
  Stored* const dy = queries + kOwnTile<kHead>;
  Stored* const stages = dy + kOwnTile<kHead>;
  load_rows<kHead>(qkv_rows(shape, tensors.qkv, tile, tile.query), tile.first, shape.tokens,
                   aligned, queries);
  load_rows<kHead>(output_rows(shape, tensors.dy, tile.sequence, tile.head), tile.first,
                   shape.tokens, aligned, dy);
  const auto load = [&](int i, int stage) {
    const std::int64_t key = begin + static_cast<std::int64_t>(i) * kKeys;
    Stored* const keys = stages + stage * 2 * kTile<kHead>;
    load_rows<kHead, kKeys>(qkv_rows(shape, tensors.qkv, tile, shape.queries), key, shape.tokens,
                            aligned, keys);
    load_rows<kHead, kKeys>(qkv_rows(shape, tensors.qkv, tile, shape.queries + 1), key,
                            shape.tokens, aligned, keys + kTile<kHead>);
  };
  load(0, 0);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kMatrixRows;
  RowSums rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t token = tile.first + warp_row + lane_number() / 4 + half * 8;
    const std::int64_t row = row_index(shape, tile.sequence, tile.head, token);
    rows.log_sums[half] = token < shape.tokens ? tensors.log_sums[row] : 0.0F;
    rows.corrections[half] = token < shape.tokens ? tensors.corrections[row] : 0.0F;
    rows.first_seen[half] = tensors.visible.first(tile.sequence, token);
  }
  wait_for_copies();
  __syncthreads();

  SumMatrix dqueries[kHead / kSumColumns] = {};
  over_tiles<kStages<kHead>>(before + kParts, load, [&](int i, int stage) {
    const Stored* const keys = stages + stage * 2 * kTile<kHead>;
#pragma unroll 1
    for (int part = 0; part < kKeys; part += kKeysAtOnce) {
      // The keys before the tile's queries are seen.
      const int behind = i < before ? kSide : warp_row - (i - before) % kParts * kKeys - part;
      // Otherwise all scores are masked.
      if (behind + kMatrixRows > 0) {
        add_query_gradients<kHead>(queries, dy, keys + part * kHead,
                                   keys + kTile<kHead> + part * kHead, behind,
                                   begin + static_cast<std::int64_t>(i) * kKeys + part, warp_row,
                                   scales.factor, cap, rows, dqueries);
      }
    }
  });
  store_sums<kHead>(dqueries, {scales.scale, scales.scale}, queries + warp_row * kHead,
                    qkv_rows(shape, tensors.dqkv, tile, tile.query), tile.first + warp_row,
                    shape.tokens, aligned);
}

template <int kHead>
void backward(Context& context, const AttentionShape& shape,
              const BackwardTensors<Stored>& tensors) {
  const std::int64_t tiles = tiles_of(shape.tokens, kSide);
  const bool aligned = begin_at_pieces({tensors.qkv, tensors.dy, tensors.dqkv});
  const auto bytes_with = [](int elements_of_stage) {
    return static_cast<std::int64_t>(2 * kOwnTile<kHead> + kStages<kHead> * elements_of_stage) *
           static_cast<std::int64_t>(sizeof(Stored));
  };
  with_cap<float>(shape, shape.score_scale(), [&]<typename Cap>(const Cap& cap) {
    const Scales scales{static_cast<float>(shape.score_scale()),
                        scale_after<Cap>(shape) * kLog2OfE};
    launch(context, "attention's gradient of keys",
           {shape.sequences * shape.kv_heads * tiles * (kHead / kGradientColumns<kHead>),
            kTensorCoreThreads, bytes_with(QueryStage<kHead>::kElements)},
           keys_kernel<kHead, Cap>, shape, tiles, scales, cap, tensors, aligned);
    launch(
        context, "attention's gradient of queries",
        {shape.sequences * shape.heads() * tiles, kTensorCoreThreads, bytes_with(2 * kTile<kHead>)},
        queries_kernel<kHead, Cap>, shape, tiles, scales, cap, tensors, aligned);
  });
}

}  // namespace

void tensor_core_attention_backward(Context& context, const AttentionShape& shape,
                                    const BackwardTensors<Stored>& tensors) {
  with_matrix_head(shape.head_size, [&]<int kHead>(std::integral_constant<int, kHead>) {
    backward<kHead>(context, shape, tensors);
  });
}

}  // namespace strata::ops::cuda
