#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"

#include "checks.hpp"
#include "observed.hpp"
#include "simd/math.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/tile_product.hpp"
#include "simd/to_storage.hpp"
#include "simd/transpose_block.hpp"

// Shared by attention's forward and backward passes on the CPU. Scores are computed in tiles of
// kTile queries by kTile keys; operands are copied into contiguous rows of the compute type, so
// that one code serves every dtype.
namespace strata::ops {

/// Queries and keys of a tile of scores. Tiles start at multiples of it within a sequence.
inline constexpr std::int64_t kTile = 64;
static_assert(kTile % kTileColumns == 0);

inline std::int64_t tiles_of(std::int64_t tokens) {
  return (tokens + kTile - 1) / kTile;
}

inline void require_qkv(const AttentionShape& shape, const ConstTensorView& qkv) {
  require(shape.sequences >= 1 && shape.tokens >= 1 && shape.kv_heads >= 1 && shape.queries >= 1 &&
              shape.head_size >= 1 && shape.scale >= 0.0 && shape.softcap >= 0.0,
          "attention over {} x {} tokens with {} x {} heads of {}, scores times {} capped at {}",
          shape.sequences, shape.tokens, shape.kv_heads, shape.queries, shape.head_size,
          shape.scale, shape.softcap);
  require_like(qkv, qkv.dtype(), Shape{shape.rows(), shape.qkv_width()}, "attention's qkv");
}

inline void require_mask(const AttentionShape& shape, const AttentionMask& mask) {
  require(mask.window >= 0, "an attention window of {} tokens", mask.window);
  if (!mask.document_starts.empty()) {
    require_like(mask.document_starts, DType::kUint32, Shape{shape.sequences, shape.tokens},
                 "attention's starts of documents");
  }
}

/// The keys of one sequence that its queries see, each up to its own.
struct SeenKeys {
  const std::uint32_t* starts = nullptr;
  std::int64_t window = 0;

  SeenKeys() = default;
  explicit SeenKeys(std::int64_t window_of_all) : window(window_of_all) {}
  SeenKeys(const AttentionShape& shape, const AttentionMask& mask, std::int64_t sequence)
      : window(mask.window) {
    if (!mask.document_starts.empty()) {
      starts = mask.document_starts.host<std::uint32_t>().data() + sequence * shape.tokens;
    }
  }
  /// Never descends.
  [[nodiscard]] std::int64_t first(std::int64_t query) const {
    const std::int64_t start = starts == nullptr ? 0 : std::int64_t{starts[query]};
    return window > 0 ? std::max(start, query - window + 1) : start;
  }
  /// Of a tile of keys from `key` on, those that a query does not see at its begin.
  [[nodiscard]] std::int64_t hidden(std::int64_t query, std::int64_t key) const {
    return std::clamp<std::int64_t>(first(query) - key, 0, kTile);
  }
};

/// The work of a pass of `products` products of half a score matrix (causal) each, or of what a
/// window leaves of it.
inline OperationWork attention_work(std::string_view name, double products,
                                    const AttentionShape& shape, const AttentionMask& mask,
                                    double bytes, DType dtype) {
  const auto tokens = static_cast<double>(shape.tokens);
  return {.name = name,
          .dtype = dtype,
          .extents = {shape.sequences * shape.heads(), shape.tokens, shape.head_size},
          .flops = products * static_cast<double>(shape.sequences * shape.width()) * tokens *
                   tokens * share_in_window(shape.tokens, mask.window),
          .bytes = bytes,
          .scratch = mask.hides_any() ? 0 : library_attention_bytes(shape, dtype)};
}

/// Leaves scores as they are.
struct Uncapped {
  template <typename T>
  [[gnu::always_inline]] T operator()(T& /*score*/) const {
    return T{1};
  }
};

/// Caps a score and returns the slope: score = cap tanh(score / cap).
template <typename T>
struct SoftCap {
  T cap;

  [[gnu::always_inline]] T operator()(T& score) const {
    const T part = fast_tanh(score / cap);
    score = cap * part;
    return T{1} - part * part;
  }
};

/// Calls function(cap) with AttentionShape's cap.
template <typename T, typename Function>
void with_cap(double softcap, const Function& function) {
  if (softcap > 0.0) {
    function(SoftCap<T>{static_cast<T>(softcap)});
  } else {
    function(Uncapped());
  }
}

/// Rows of one head in a tensor, `stride` elements apart.
template <typename Stored>
struct HeadRows {
  Stored* data = nullptr;
  std::int64_t stride = 0;

  [[nodiscard]] HeadRows from(std::int64_t row) const { return {data + row * stride, stride}; }
};

/// The rows of a key-value head in qkv: query head `index`, the key (index == queries) or the value
/// (index == queries + 1).
template <typename Stored>
HeadRows<Stored> qkv_head(const AttentionShape& shape, Stored* qkv, std::int64_t sequence,
                          std::int64_t kv_head, std::int64_t index) {
  const std::int64_t column = (kv_head * (shape.queries + 2) + index) * shape.head_size;
  return {qkv + sequence * shape.tokens * shape.qkv_width() + column, shape.qkv_width()};
}

/// The rows of a query head in the output.
template <typename Stored>
HeadRows<Stored> output_head(const AttentionShape& shape, Stored* y, std::int64_t sequence,
                             std::int64_t head) {
  return {y + sequence * shape.tokens * shape.width() + head * shape.head_size, shape.width()};
}

/// to[i, c] = scale * from[i, c], rows of `to` being `stride` apart.
template <typename T, typename Stored>
void gather_rows(const HeadRows<const Stored>& from, std::int64_t rows, std::int64_t columns,
                 T scale, T* to, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const Stored* const source = from.data + row * from.stride;
    T* const target = to + row * stride;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) {
      target[c] = scale * static_cast<T>(source[c]);
    }
  }
}

/// The inverse of gather_rows().
template <typename T, typename Stored>
void scatter_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                  T scale, const HeadRows<Stored>& to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* const source = from + row * stride;
    Stored* const target = to.data + row * to.stride;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) {
      target[c] = to_storage<Stored>(scale * source[c]);
    }
  }
}

/// Transposes rows into consecutive tiles of columns x kTile. The last tile's columns beyond the
/// rows are not written.
template <typename T, typename Stored>
void gather_transposed(const HeadRows<const Stored>& from, std::int64_t rows, std::int64_t columns,
                       T* to) {
  for (std::int64_t row = 0; row < rows; row += kTransposeBlock) {
    T* const tile = to + row / kTile * kTile * columns + row % kTile;
    const std::int64_t block_rows = std::min(kTransposeBlock, rows - row);
    for (std::int64_t c = 0; c < columns; c += kTransposeBlock) {
      const std::int64_t block_columns = std::min(kTransposeBlock, columns - c);
      if (block_rows == kTransposeBlock && block_columns == kTransposeBlock) {
        transpose_block(from.data + row * from.stride + c, from.stride, tile + c * kTile, kTile);
        continue;
      }
      for (std::int64_t i = 0; i < block_rows; ++i) {
        for (std::int64_t j = 0; j < block_columns; ++j) {
          tile[(c + j) * kTile + i] = static_cast<T>(from.data[(row + i) * from.stride + c + j]);
        }
      }
    }
  }
}

/// Sets elements [seen, padded(seen)) to `value`.
template <typename T>
void mask_last(T* row, std::int64_t seen, T value) {
  const std::int64_t whole = seen / kTileColumns * kTileColumns;
  if (whole == seen) {
    return;
  }
  const auto left = static_cast<std::int32_t>(seen - whole);
  T* const last = row + whole;
#pragma omp simd
  for (std::int32_t lane = 0; lane < kTileColumns; ++lane) {
    last[lane] = lane < left ? last[lane] : value;
  }
}

/// Sets the first elements to `value`.
template <typename T>
void mask_first(T* row, std::int64_t hidden, T value) {
  std::fill_n(row, hidden, value);
}

/// Sets elements [begin, kTile) to 0. Pre: begin is a multiple of kTileColumns.
template <typename T>
void clear_rest(T* row, std::int64_t begin) {
  for (; begin < kTile; begin += kTileColumns) {
    std::fill_n(row + begin, kTileColumns, T{0});
  }
}

template <typename T>
T sum_of(std::array<T, kTileColumns>& lanes) {
  return tree_reduce<kTileColumns>(lanes, [](T a, T b) { return a + b; });
}

/// Zero-initialised scratch for each thread of a context. Its size depends only on the operation's
/// shape.
template <typename T>
class ThreadScratch {
 public:
  ThreadScratch(Context& context, std::int64_t elements)
      : elements_(padded(elements)),
        buffer_(device::Device::cpu(),
                context.threads() * elements_ * static_cast<std::int64_t>(sizeof(T))) {}

  [[nodiscard]] T* of(int thread) const {
    return reinterpret_cast<T*>(buffer_.raw()) + thread * elements_;
  }

 private:
  std::int64_t elements_;
  device::Buffer buffer_;
};

/// A bump allocator over a thread's scratch.
template <typename T>
class ScratchCursor {
 public:
  explicit ScratchCursor(T* next) : next_(next) {}

  T* take(std::int64_t elements) {
    T* const taken = next_;
    next_ += padded(elements);
    return taken;
  }

 private:
  T* next_;
};

}  // namespace strata::ops
