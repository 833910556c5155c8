#include "strata/core/dtype.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/parallel_for.hpp"

#include "attention/attention_tiles.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"

namespace strata::ops {
namespace {

/// A thread's scratch: a key-value head (transposed tiles of keys and values, and the keys by rows)
/// with the gradients of its keys and values, and one tile of queries.
template <typename T>
struct BackwardScratch {
  BackwardScratch(T* memory, std::int64_t tokens, std::int64_t head_size) {
    ScratchCursor<T> cursor(memory);
    const std::int64_t width = padded(head_size);
    keys = cursor.take(tokens * width);
    dkeys = cursor.take(tokens * width);
    dvalues = cursor.take(tokens * width);
    transposed_keys = cursor.take(tiles_of(tokens) * kTile * head_size);
    transposed_values = cursor.take(tiles_of(tokens) * kTile * head_size);
    queries = cursor.take(kTile * width);
    dqueries = cursor.take(kTile * width);
    dy = cursor.take(kTile * width);
    y = cursor.take(kTile * width);
    weights = cursor.take(kTile * kTile);
    dscores = cursor.take(kTile * kTile);
    corrections = cursor.take(kTile);
  }
  static std::int64_t elements(std::int64_t tokens, std::int64_t head_size) {
    const std::int64_t width = padded(head_size);
    return 3 * tokens * width + 2 * padded(tiles_of(tokens) * kTile * head_size) +
           4 * kTile * width + 2 * kTile * kTile + kTile;
  }

  T* keys;
  T* dkeys;
  T* dvalues;
  T* transposed_keys;
  T* transposed_values;
  T* queries;
  T* dqueries;
  T* dy;
  T* y;
  T* weights;
  T* dscores;
  T* corrections;
};

/// One query head; log_sums of its tokens.
template <typename T, typename Stored>
struct BackwardHead {
  std::int64_t tokens = 0;
  std::int64_t head_size = 0;
  T scale{};
  double softcap = 0.0;
  HeadRows<const Stored> queries;
  HeadRows<const Stored> y;
  HeadRows<const Stored> dy;
  HeadRows<Stored> dqueries;
  SeenKeys seen;
  const T* log_sums = nullptr;
};

/// Pre: count is a multiple of kTileColumns.
template <typename T>
T row_dot(const T* a, const T* b, std::int64_t count) {
  std::array<T, kTileColumns> lanes{};
  for (std::int64_t i = 0; i < count; i += kTileColumns) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kTileColumns; ++lane) {
      lanes[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
    }
  }
  return sum_of(lanes);
}

/// Softmax backward for one query: turns scores, which `cap` caps, into weights, and gradients of
/// weights into gradients of scores. The query sees the first `seen` keys but for `hidden` ones;
/// the rest becomes 0.
template <typename T, typename Cap>
void softmax_backward_row(T* weights, T* dscores, std::int64_t hidden, std::int64_t seen, T log_sum,
                          T correction, const Cap& cap) {
  const std::int64_t count = padded(seen);
#pragma omp simd
  for (std::int64_t c = 0; c < count; ++c) {
    const T slope = cap(weights[c]);
    weights[c] = fast_exp(weights[c] - log_sum);
    dscores[c] = weights[c] * (dscores[c] - correction) * slope;
  }
  mask_last(weights, seen, T{0});
  mask_last(dscores, seen, T{0});
  mask_first(weights, hidden, T{0});
  mask_first(dscores, hidden, T{0});
  clear_rest(weights, count);
  clear_rest(dscores, count);
}

/// The gradients of one tile of scores: `rows` queries from `first` on by the keys from `key` on.
template <typename T, typename Stored>
void backward_tile(const BackwardHead<T, Stored>& head, const BackwardScratch<T>& scratch,
                   std::int64_t first, std::int64_t rows, std::int64_t key) {
  const std::int64_t size = head.head_size;
  const std::int64_t width = padded(size);
  const std::int64_t columns = std::min(kTile, head.tokens - key);
  const std::int64_t offset = first - key;
  tile_product<TileForm::kScores, T>({rows, padded(columns), size, offset, scratch.queries, width,
                                      scratch.transposed_keys + key * size, kTile, scratch.weights,
                                      kTile});
  tile_product<TileForm::kScores, T>({rows, padded(columns), size, offset, scratch.dy, width,
                                      scratch.transposed_values + key * size, kTile,
                                      scratch.dscores, kTile});
  with_cap<T>(head.softcap, [&](const auto& cap) {
    for (std::int64_t row = 0; row < rows; ++row) {
      softmax_backward_row(scratch.weights + row * kTile, scratch.dscores + row * kTile,
                           head.seen.hidden(first + row, key), std::min(columns, row + offset + 1),
                           head.log_sums[first + row], scratch.corrections[row], cap);
    }
  });
  tile_product<TileForm::kWeightedTransposed, T>({columns, width, rows, offset, scratch.weights,
                                                  kTile, scratch.dy, width,
                                                  scratch.dvalues + key * width, width});
  tile_product<TileForm::kWeightedTransposed, T>({columns, width, rows, offset, scratch.dscores,
                                                  kTile, scratch.queries, width,
                                                  scratch.dkeys + key * width, width});
  tile_product<TileForm::kWeighted, T>({rows, width, columns, offset, scratch.dscores, kTile,
                                        scratch.keys + key * width, width, scratch.dqueries,
                                        width});
}

template <typename T, typename Stored>
void backward_head(const BackwardHead<T, Stored>& head, const BackwardScratch<T>& scratch) {
  const std::int64_t size = head.head_size;
  const std::int64_t width = padded(size);
  for (std::int64_t first = 0; first < head.tokens; first += kTile) {
    const std::int64_t rows = std::min(kTile, head.tokens - first);
    // Scaling the queries also scales the scores and the gradient of the keys.
    gather_rows(head.queries.from(first), rows, size, head.scale, scratch.queries, width);
    gather_rows(head.y.from(first), rows, size, T{1}, scratch.y, width);
    gather_rows(head.dy.from(first), rows, size, T{1}, scratch.dy, width);
    for (std::int64_t row = 0; row < rows; ++row) {
      scratch.corrections[row] = row_dot(scratch.y + row * width, scratch.dy + row * width, width);
    }
    std::fill_n(scratch.dqueries, rows * width, T{0});
    for (std::int64_t key = head.seen.first(first) / kTile * kTile; key < first + rows;
         key += kTile) {
      backward_tile(head, scratch, first, rows, key);
    }
    scatter_rows(scratch.dqueries, width, rows, size, head.scale, head.dqueries.from(first));
  }
}

template <typename Stored>
struct BackwardTensors {
  const Stored* qkv = nullptr;
  const Stored* y = nullptr;
  const Compute<Stored>* log_sums = nullptr;
  const Stored* dy = nullptr;
  Stored* dqkv = nullptr;
};

template <typename Stored>
void backward_kv_head(const AttentionShape& shape, const AttentionMask& mask,
                      const BackwardTensors<Stored>& tensors, std::int64_t sequence,
                      std::int64_t kv_head, const BackwardScratch<Compute<Stored>>& scratch) {
  using T = Compute<Stored>;
  const std::int64_t tokens = shape.tokens;
  const std::int64_t size = shape.head_size;
  const std::int64_t width = padded(size);
  const auto keys = qkv_head(shape, tensors.qkv, sequence, kv_head, shape.queries);
  const auto values = qkv_head(shape, tensors.qkv, sequence, kv_head, shape.queries + 1);
  gather_rows(keys, tokens, size, T{1}, scratch.keys, width);
  gather_transposed(keys, tokens, size, scratch.transposed_keys);
  gather_transposed(values, tokens, size, scratch.transposed_values);
  std::fill_n(scratch.dkeys, tokens * width, T{0});
  std::fill_n(scratch.dvalues, tokens * width, T{0});
  for (std::int64_t query = 0; query < shape.queries; ++query) {
    const std::int64_t head = kv_head * shape.queries + query;
    backward_head<T, Stored>(
        {tokens, size, static_cast<T>(shape.score_scale()), shape.softcap,
         qkv_head(shape, tensors.qkv, sequence, kv_head, query),
         output_head(shape, tensors.y, sequence, head),
         output_head(shape, tensors.dy, sequence, head),
         qkv_head(shape, tensors.dqkv, sequence, kv_head, query), SeenKeys(shape, mask, sequence),
         tensors.log_sums + (sequence * shape.heads() + head) * tokens},
        scratch);
  }
  scatter_rows(scratch.dkeys, width, tokens, size, T{1},
               qkv_head(shape, tensors.dqkv, sequence, kv_head, shape.queries));
  scatter_rows(scratch.dvalues, width, tokens, size, T{1},
               qkv_head(shape, tensors.dqkv, sequence, kv_head, shape.queries + 1));
}

}  // namespace

void causal_attention_backward(Context& context, const AttentionShape& shape,
                               const ConstTensorView& qkv, const ConstTensorView& y,
                               const ConstTensorView& log_sums, const ConstTensorView& dy,
                               const TensorView& dqkv, const AttentionMask& mask) {
  const Observed observed(context, [&] {
    return attention_work("attention_backward", 5.0, shape, mask,
                          2.0 * (Observed::bytes_of(qkv) + Observed::bytes_of(y)), qkv.dtype());
  });
  require_qkv(shape, qkv);
  const Shape output{shape.rows(), shape.width()};
  require_like(y, qkv.dtype(), output, "attention's y");
  require_like(dy, qkv.dtype(), output, "attention's dy");
  require_like(dqkv, qkv.dtype(), qkv.shape(), "attention's dqkv");
  require_like(log_sums, compute_dtype(qkv.dtype()),
               Shape{shape.sequences, shape.heads(), shape.tokens}, "attention's log_sums");
  require_mask(shape, mask);
  if (observed.handled_by<cuda::causal_attention_backward>(shape, qkv, y, log_sums, dy, dqkv,
                                                           mask)) {
    return;
  }
  with_stored(qkv.dtype(), [&]<typename Stored>(Stored) {
    using T = Compute<Stored>;
    const BackwardTensors<Stored> tensors{qkv.host<Stored>().data(), y.host<Stored>().data(),
                                          log_sums.host<T>().data(), dy.host<Stored>().data(),
                                          dqkv.host<Stored>().data()};
    const ThreadScratch<T> memory(context,
                                  BackwardScratch<T>::elements(shape.tokens, shape.head_size));
    const std::int64_t items = shape.sequences * shape.kv_heads;
    parallel_for(context, items, 1, [&](std::int64_t item, std::int64_t, int thread) {
      const BackwardScratch<T> scratch(memory.of(thread), shape.tokens, shape.head_size);
      backward_kv_head(shape, mask, tensors, item / shape.kv_heads, item % shape.kv_heads, scratch);
    });
  });
}

}  // namespace strata::ops
