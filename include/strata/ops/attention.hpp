#pragma once

#include <compare>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// The heads of a causal self-attention and the sequences that it acts on. A row of the fused qkv
/// tensor holds, for every key-value head in order: its queries, one key, one value, each of
/// head_size elements. A row of the attention's output holds the query heads in the same order.
struct AttentionShape {
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;  ///< in each sequence
  std::int64_t kv_heads = 1;
  std::int64_t queries = 1;  ///< query heads of one key-value head
  std::int64_t head_size = 1;

  [[nodiscard]] constexpr std::int64_t rows() const { return sequences * tokens; }
  [[nodiscard]] constexpr std::int64_t heads() const { return kv_heads * queries; }
  [[nodiscard]] constexpr std::int64_t qkv_width() const {
    return kv_heads * (queries + 2) * head_size;
  }
  [[nodiscard]] constexpr std::int64_t width() const { return heads() * head_size; }

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

/// For each head y = softmax(q k^T / sqrt(head_size)) v, a token seeing itself and those before it.
/// The scores of all heads never exist at once; the softmax is computed in compute_dtype(). The
/// bits of a head depend on its own q, k, v and the shape alone; by own kernels, on the shape's
/// tokens and head_size alone. Shapes: qkv
/// rows x qkv_width, y rows x width, of one dtype; log_sums (of each row's exponentials, with the
/// largest score put back) sequences x heads x tokens in compute_dtype(). Source: Vaswani et al.,
/// "Attention is all you need", arXiv 1706.03762; Ainslie et al., "GQA", arXiv 2305.13245; Dao et
/// al., "FlashAttention", arXiv 2205.14135.
void causal_attention_forward(Context& context, const AttentionShape& shape,
                              const ConstTensorView& qkv, const TensorView& y,
                              const TensorView& log_sums);

/// The gradient of qkv. Scores are computed again from qkv and log_sums.
/// Shapes: as forward; dy as y; dqkv as qkv.
void causal_attention_backward(Context& context, const AttentionShape& shape,
                               const ConstTensorView& qkv, const ConstTensorView& y,
                               const ConstTensorView& log_sums, const ConstTensorView& dy,
                               const TensorView& dqkv);

/// Bytes that a GPU's library works in for causal_attention_backward(), but for small things, where
/// it takes the shape and its kernels are wanted (CudaOptions); 0 where own kernels do it.
[[nodiscard]] std::int64_t library_attention_bytes(const AttentionShape& shape, DType dtype);

/// Attention of new tokens of one sequence over the tokens before them and themselves, for
/// generation. Pre: shape.sequences == 1; shape.tokens new tokens follow `past` ones; the new
/// tokens' keys and values stand in the caches already.
/// Shapes: qkv new x qkv_width; keys, values kv_heads x capacity x head_size; y new x width.
void cached_attention(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                      const ConstTensorView& keys, const ConstTensorView& values, std::int64_t past,
                      const TensorView& y);

/// Copies the new tokens' keys and values behind the `past` ones in the caches. Shapes: as
/// cached_attention.
void append_to_cache(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                     std::int64_t past, const TensorView& keys, const TensorView& values);

/// Which way rotary() turns.
enum class Rotation { kForward, kBackward };

/// Turns the queries and keys in qkv, in place: elements i and i + head_size / 2 of a head by the
/// angle position theta^(-2 i / head_size), position = offset + row % tokens. kBackward turns back,
/// which takes a gradient through the turn.
/// Pre: head_size is even. Source: Su et al., "RoFormer", arXiv 2104.09864, in the halves layout of
/// GPT-NeoX and Llama.
void rotary(Context& context, const AttentionShape& shape, double theta, std::int64_t offset,
            Rotation rotation, const TensorView& qkv);

}  // namespace strata::ops
