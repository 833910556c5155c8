#include "strata/ops/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "attention/attention_tiles.hpp"
#include "attention/cudnn_attention_limits.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"

namespace strata::ops {
namespace {

/// A thread's scratch: all keys (as transposed tiles) and values of a key-value head; one tile of
/// queries with its scores; and the state of the online softmax: accumulators, row maxima, row
/// totals and the factors that rescale them.
template <typename T>
struct ForwardScratch {
  ForwardScratch(T* memory, std::int64_t keys, std::int64_t head_size) {
    ScratchCursor<T> cursor(memory);
    const std::int64_t width = padded(head_size);
    transposed_keys = cursor.take(tiles_of(keys) * kTile * head_size);
    values = cursor.take(keys * width);
    queries = cursor.take(kTile * width);
    sums = cursor.take(kTile * width);
    scores = cursor.take(kTile * kTile);
    largest = cursor.take(kTile);
    total = cursor.take(kTile);
    factors = cursor.take(kTile);
  }
  static std::int64_t elements(std::int64_t keys, std::int64_t head_size) {
    const std::int64_t width = padded(head_size);
    return padded(tiles_of(keys) * kTile * head_size) + keys * width + 2 * kTile * width +
           kTile * kTile + 3 * kTile;
  }

  T* transposed_keys;
  T* values;
  T* queries;
  T* sums;
  T* scores;
  T* largest;
  T* total;
  T* factors;
};

/// The queries of one head: query i follows `past` tokens and i queries. log_sums may be null.
template <typename T, typename Stored>
struct QueryHead {
  HeadRows<const Stored> queries;
  std::int64_t count = 0;
  std::int64_t past = 0;
  std::int64_t head_size = 0;
  T scale{};
  double softcap = 0.0;
  HeadRows<Stored> y;
  SeenKeys seen;
  T* log_sums = nullptr;
};

template <typename T>
T larger(T a, T b) {
  return b > a ? b : a;
}

/// Pre: count is a multiple of kTileColumns, not 0.
template <typename T>
T largest_of(const T* x, std::int64_t count) {
  std::array<T, kTileColumns> lanes;
  lanes.fill(-std::numeric_limits<T>::infinity());
  for (std::int64_t i = 0; i < count; i += kTileColumns) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kTileColumns; ++lane) {
      T& largest = lanes[static_cast<std::size_t>(lane)];
      largest = larger(largest, x[i + lane]);
    }
  }
  return tree_reduce<kTileColumns>(lanes, larger<T>);
}

/// x = exp(x - largest), and their sum.
template <typename T>
T exponentials(T* x, std::int64_t count, T largest) {
  std::array<T, kTileColumns> lanes{};
  for (std::int64_t i = 0; i < count; i += kTileColumns) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kTileColumns; ++lane) {
      const T value = fast_exp(x[i + lane] - largest);
      x[i + lane] = value;
      lanes[static_cast<std::size_t>(lane)] += value;
    }
  }
  return sum_of(lanes);
}

/// Caps the scores of a tile of `rows` queries.
template <typename T>
void cap_tile(T* scores, std::int64_t rows, std::int64_t columns, const SoftCap<T>& cap) {
  for (std::int64_t row = 0; row < rows; ++row) {
    T* const of_row = scores + row * kTile;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) {
      cap(of_row[c]);
    }
  }
}

/// Online softmax of a tile of `rows` queries: updates the row maxima, turns scores into
/// exponentials relative to them, and updates the rescaled row totals. hidden(row): the first keys
/// that a query does not see.
template <typename T, typename Hidden>
void softmax_tile(const ForwardScratch<T>& scratch, std::int64_t rows, std::int64_t columns,
                  std::int64_t offset, const Hidden& hidden) {
  // The causal mask: keys after the query are not visible.
  const auto visible_keys = [=](std::int64_t row) {
    return std::clamp<std::int64_t>(row + offset + 1, 0, columns);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    T* const scores = scratch.scores + row * kTile;
    mask_last(scores, visible_keys(row), -std::numeric_limits<T>::infinity());
    mask_first(scores, hidden(row), -std::numeric_limits<T>::infinity());
    scratch.factors[row] = scratch.largest[row];
    scratch.largest[row] =
        larger(scratch.largest[row], largest_of(scores, padded(visible_keys(row))));
  }
#pragma omp simd
  for (std::int64_t row = 0; row < rows; ++row) {
    scratch.factors[row] = fast_exp(scratch.factors[row] - scratch.largest[row]);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    T* const scores = scratch.scores + row * kTile;
    if (hidden(row) >= visible_keys(row)) {  // perhaps no key so far, with a maximum of -infinity
      scratch.factors[row] = T{1};
      clear_rest(scores, 0);
      continue;
    }
    const std::int64_t count = padded(visible_keys(row));
    const T sum = exponentials(scores, count, scratch.largest[row]);
    scratch.total[row] = scratch.total[row] * scratch.factors[row] + sum;
    clear_rest(scores, count);
  }
}

/// Rescales the accumulators after the row maxima grew.
template <typename T>
void scale_sums(const ForwardScratch<T>& scratch, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    T* const sums = scratch.sums + row * width;
    const T factor = scratch.factors[row];
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) {
      sums[c] *= factor;
    }
  }
}

/// Attends one tile of queries, from `first` on, to all visible tiles of keys.
template <typename T, typename Stored>
void forward_queries(const QueryHead<T, Stored>& head, const ForwardScratch<T>& scratch,
                     std::int64_t first) {
  const std::int64_t rows = std::min(kTile, head.count - first);
  const std::int64_t width = padded(head.head_size);
  const std::int64_t keys = head.past + first + rows;
  gather_rows(head.queries.from(first), rows, head.head_size, head.scale, scratch.queries, width);
  std::fill_n(scratch.sums, rows * width, T{0});
  std::fill_n(scratch.largest, rows, -std::numeric_limits<T>::infinity());
  std::fill_n(scratch.total, rows, T{0});
  // Of the tile's queries the first one sees the first key.
  const std::int64_t begin = head.seen.first(head.past + first) / kTile * kTile;
  for (std::int64_t key = begin; key < keys; key += kTile) {
    const std::int64_t columns = std::min(kTile, keys - key);
    const std::int64_t offset = head.past + first - key;
    tile_product<TileForm::kScores, T>(
        {rows, padded(columns), head.head_size, offset, scratch.queries, width,
         scratch.transposed_keys + key * head.head_size, kTile, scratch.scores, kTile});
    if (head.softcap > 0.0) {
      cap_tile<T>(scratch.scores, rows, padded(columns), {static_cast<T>(head.softcap)});
    }
    softmax_tile(scratch, rows, columns, offset,
                 [&](std::int64_t row) { return head.seen.hidden(head.past + first + row, key); });
    if (key > begin) {
      scale_sums(scratch, rows, width);
    }
    tile_product<TileForm::kWeighted, T>({rows, width, columns, offset, scratch.scores, kTile,
                                          scratch.values + key * width, width, scratch.sums,
                                          width});
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    scatter_rows(scratch.sums + row * width, width, 1, head.head_size, T{1} / scratch.total[row],
                 head.y.from(first + row));
    if (head.log_sums != nullptr) {
      head.log_sums[first + row] = scratch.largest[row] + std::log(scratch.total[row]);
    }
  }
}

template <typename T, typename Stored>
void gather_keys(const HeadRows<const Stored>& keys, const HeadRows<const Stored>& values,
                 std::int64_t count, std::int64_t head_size, const ForwardScratch<T>& scratch) {
  gather_transposed(keys, count, head_size, scratch.transposed_keys);
  gather_rows(values, count, head_size, T{1}, scratch.values, padded(head_size));
}

template <typename T, typename Stored>
void forward_head(const QueryHead<T, Stored>& head, const ForwardScratch<T>& scratch) {
  for (std::int64_t first = 0; first < head.count; first += kTile) {
    forward_queries(head, scratch, first);
  }
}

template <typename Stored>
void forward(Context& context, const AttentionShape& shape, const AttentionMask& mask,
             const Stored* qkv, Stored* y, Compute<Stored>* log_sums) {
  using T = Compute<Stored>;
  const std::int64_t tokens = shape.tokens;
  const std::int64_t size = shape.head_size;
  const ThreadScratch<T> memory(context, ForwardScratch<T>::elements(tokens, size));
  const std::int64_t items = shape.sequences * shape.kv_heads;
  parallel_for(context, items, 1, [&](std::int64_t item, std::int64_t, int thread) {
    const std::int64_t sequence = item / shape.kv_heads;
    const std::int64_t kv_head = item % shape.kv_heads;
    const ForwardScratch<T> scratch(memory.of(thread), tokens, size);
    gather_keys(qkv_head(shape, qkv, sequence, kv_head, shape.queries),
                qkv_head(shape, qkv, sequence, kv_head, shape.queries + 1), tokens, size, scratch);
    for (std::int64_t query = 0; query < shape.queries; ++query) {
      const std::int64_t head = kv_head * shape.queries + query;
      forward_head<T, Stored>(
          {qkv_head(shape, qkv, sequence, kv_head, query), tokens, 0, size,
           static_cast<T>(shape.score_scale()), shape.softcap,
           output_head(shape, y, sequence, head), SeenKeys(shape, mask, sequence),
           log_sums + (sequence * shape.heads() + head) * tokens},
          scratch);
    }
  });
}

/// Pre: a cache for each sequence, in which its new tokens fit.
void require_caches(const AttentionShape& shape, const ConstTensorView& qkv,
                    std::span<const KeyValueCache> caches) {
  require(std::ssize(caches) == shape.sequences, "{} caches for {} sequences", caches.size(),
          shape.sequences);
  for (const KeyValueCache& cache : caches) {
    require(cache.keys.shape().rank() == 3, "a cache of {}", cache.keys.shape().text());
    const std::int64_t capacity = cache.keys.shape()[1];
    const Shape whole{shape.kv_heads, capacity, shape.head_size};
    require_like(cache.keys, qkv.dtype(), whole, "attention's cache");
    require_like(cache.values, qkv.dtype(), whole, "attention's values");
    require(cache.past >= 0 && cache.past + shape.tokens <= capacity,
            "{} tokens behind {} in a cache for {}", shape.tokens, cache.past, capacity);
  }
}

/// Calls function(a sequence, its cache, a key-value head) for each on the context's threads.
template <typename Function>
void for_each_head(Context& context, const AttentionShape& shape,
                   std::span<const KeyValueCache> caches, const Function& function) {
  const std::int64_t items = shape.sequences * shape.kv_heads;
  parallel_for(context, items, 1, [&](std::int64_t item, std::int64_t, int thread) {
    const std::int64_t sequence = item / shape.kv_heads;
    function(sequence, caches[static_cast<std::size_t>(sequence)], item % shape.kv_heads, thread);
  });
}

}  // namespace

std::int64_t library_attention_bytes(const AttentionShape& shape, DType dtype) {
  const std::int64_t of_head = shape.tokens * shape.tokens;
  if (dtype != DType::kBfloat16 || shape.softcap > 0.0 || !is_order_recognisable(shape) ||
      shape.queries * of_head > kMaxLibraryWeights) {
    return 0;
  }
  return std::min(shape.sequences * shape.heads() * of_head, kMaxLibraryWeights) *
         size_bytes(dtype);
}

void causal_attention_forward(Context& context, const AttentionShape& shape,
                              const ConstTensorView& qkv, const TensorView& y,
                              const TensorView& log_sums, const AttentionMask& mask) {
  const Observed observed(context, [&] {
    return attention_work("attention_forward", 2.0, shape, mask,
                          Observed::bytes_of(qkv) + Observed::bytes_of(y), qkv.dtype());
  });
  require_qkv(shape, qkv);
  require_like(y, qkv.dtype(), Shape{shape.rows(), shape.width()}, "attention's y");
  require_like(log_sums, compute_dtype(qkv.dtype()),
               Shape{shape.sequences, shape.heads(), shape.tokens}, "attention's log_sums");
  require_mask(shape, mask);
  if (observed.handled_by<cuda::causal_attention_forward>(shape, qkv, y, log_sums, mask)) {
    return;
  }
  with_stored(qkv.dtype(), [&]<typename Stored>(Stored) {
    forward(context, shape, mask, qkv.host<Stored>().data(), y.host<Stored>().data(),
            log_sums.host<Compute<Stored>>().data());
  });
}

void cached_attention(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                      std::span<const KeyValueCache> caches, std::int64_t window,
                      const TensorView& y) {
  const Observed observed(context, "cached_attention", qkv, y);
  require_qkv(shape, qkv);
  require_like(y, qkv.dtype(), Shape{shape.rows(), shape.width()}, "attention's y");
  require_caches(shape, qkv, caches);
  require(window >= 0, "an attention window of {} tokens", window);
  if (observed.handled_by<cuda::cached_attention>(shape, qkv, caches, window, y)) {
    return;
  }
  const std::int64_t size = shape.head_size;
  const std::int64_t most = shape.tokens + std::ranges::max(caches, {}, &KeyValueCache::past).past;
  with_stored(qkv.dtype(), [&]<typename Stored>(Stored) {
    using T = Compute<Stored>;
    const Stored* from = qkv.host<Stored>().data();
    Stored* to = y.host<Stored>().data();
    const ThreadScratch<T> memory(context, ForwardScratch<T>::elements(most, size));
    for_each_head(
        context, shape, caches,
        [&](std::int64_t sequence, const KeyValueCache& cache, std::int64_t kv_head, int thread) {
          const ForwardScratch<T> scratch(memory.of(thread), most, size);
          const std::int64_t begin = kv_head * cache.keys.shape()[1] * size;
          gather_keys<T, Stored>({cache.keys.host<Stored>().data() + begin, size},
                                 {cache.values.host<Stored>().data() + begin, size},
                                 cache.past + shape.tokens, size, scratch);
          for (std::int64_t query = 0; query < shape.queries; ++query) {
            const std::int64_t head = kv_head * shape.queries + query;
            forward_head<T, Stored>(
                {qkv_head(shape, from, sequence, kv_head, query), shape.tokens, cache.past, size,
                 static_cast<T>(shape.score_scale()), shape.softcap,
                 output_head(shape, to, sequence, head), SeenKeys(window)},
                scratch);
          }
        });
  });
}

void append_to_cache(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                     std::span<const KeyValueCache> caches) {
  const Observed observed(context, "append_to_cache", qkv);
  require_qkv(shape, qkv);
  require_caches(shape, qkv, caches);
  if (observed.handled_by<cuda::append_to_cache>(shape, qkv, caches)) {
    return;
  }
  const std::int64_t size = shape.head_size;
  with_stored(qkv.dtype(), [&]<typename Stored>(Stored) {
    const Stored* from = qkv.host<Stored>().data();
    for_each_head(
        context, shape, caches,
        [&](std::int64_t sequence, const KeyValueCache& cache, std::int64_t kv_head, int) {
          const auto new_keys = qkv_head(shape, from, sequence, kv_head, shape.queries);
          const auto new_values = qkv_head(shape, from, sequence, kv_head, shape.queries + 1);
          const std::int64_t capacity = cache.keys.shape()[1];
          for (std::int64_t token = 0; token < shape.tokens; ++token) {
            const std::int64_t at = (kv_head * capacity + cache.past + token) * size;
            std::copy_n(new_keys.from(token).data, size, cache.keys.host<Stored>().data() + at);
            std::copy_n(new_values.from(token).data, size, cache.values.host<Stored>().data() + at);
          }
        });
  });
}

}  // namespace strata::ops
