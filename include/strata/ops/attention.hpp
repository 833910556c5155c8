#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <span>

#include "strata/core/dtype.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/rotary.hpp"

namespace strata::ops {

class Context;

/// The heads and sequences of a causal self-attention. A row of the fused qkv tensor holds, for
/// every key-value head in order, its queries, one key and one value, each of head_size elements. A
/// row of the output holds the query heads in the same order.
struct AttentionShape {
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;  ///< in each sequence
  std::int64_t kv_heads = 1;
  std::int64_t queries = 1;  ///< query heads of one key-value head
  std::int64_t head_size = 1;
  /// Scale of the scores; 0: 1 / sqrt(head_size).
  double scale = 0.0;
  /// A score s becomes softcap tanh(s / softcap); 0: stays as it is. Source: Gemma Team, "Gemma 2",
  /// arXiv 2408.00118.
  double softcap = 0.0;

  [[nodiscard]] constexpr std::int64_t rows() const { return sequences * tokens; }
  [[nodiscard]] constexpr std::int64_t heads() const { return kv_heads * queries; }
  [[nodiscard]] constexpr std::int64_t qkv_width() const {
    return kv_heads * (queries + 2) * head_size;
  }
  [[nodiscard]] constexpr std::int64_t width() const { return heads() * head_size; }
  [[nodiscard]] double score_scale() const {
    return scale > 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_size));
  }

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

/// Which of the tokens before it a token attends to: those of its document, in a window.
struct AttentionMask {
  /// The index of the first token of each token's document within its sequence, which never
  /// descends. Shape: sequences x tokens, uint32; empty: each sequence is one document.
  ConstTensorView document_starts = {};
  /// Tokens that a token attends to, itself included; 0: no limit.
  std::int64_t window = 0;

  [[nodiscard]] bool hides_any() const { return window > 0 || !document_starts.empty(); }
};

/// Of the scores of a causal attention over `tokens`, those that a window leaves.
[[nodiscard]] constexpr double share_in_window(std::int64_t tokens, std::int64_t window) {
  const double hidden = window == 0 || window >= tokens
                            ? 0.0
                            : 1.0 - static_cast<double>(window) / static_cast<double>(tokens);
  return 1.0 - hidden * hidden;
}

/// For each head y = softmax(cap(scale q k^T)) v with a causal mask: a token attends to
/// itself and the tokens before it that `mask` does not hide. Tiles that are hidden are skipped.
/// Fused: the score matrix is never stored; the softmax is
/// computed in compute_dtype(). A head's bits depend only on its q, k, v and the shape; with own
/// kernels only on q, k, v, tokens, head_size, scale and softcap. Shapes: qkv rows x qkv_width, y
/// rows x width, of one dtype; log_sums (log-sum-exp of each row's scores) sequences x heads x
/// tokens in compute_dtype(). Source: Vaswani et al., "Attention is all you need", arXiv
/// 1706.03762; Ainslie et al., "GQA", arXiv 2305.13245; Dao et al., "FlashAttention", arXiv
/// 2205.14135.
void causal_attention_forward(Context& context, const AttentionShape& shape,
                              const ConstTensorView& qkv, const TensorView& y,
                              const TensorView& log_sums, const AttentionMask& mask = {});

/// The gradient of qkv. Recomputes the scores from qkv and log_sums.
/// Shapes: as forward; dy as y; dqkv as qkv.
void causal_attention_backward(Context& context, const AttentionShape& shape,
                               const ConstTensorView& qkv, const ConstTensorView& y,
                               const ConstTensorView& log_sums, const ConstTensorView& dy,
                               const TensorView& dqkv, const AttentionMask& mask = {});

/// Bytes of cuDNN's workspace for causal_attention_backward(), apart from small buffers; 0 for
/// shapes and dtypes that own kernels run.
[[nodiscard]] std::int64_t library_attention_bytes(const AttentionShape& shape, DType dtype);

/// A sequence's keys and values of one layer, for generation. Shapes: kv_heads x capacity x
/// head_size.
struct KeyValueCache {
  TensorView keys;
  TensorView values;
  std::int64_t past = 0;  ///< the tokens in it
};

/// Causal attention of each sequence's new tokens over its key-value cache, for generation. A
/// sequence's bits depend on no other. Pre: a cache for each of shape.sequences; shape.tokens new
/// tokens follow the `past` ones; append_to_cache() has stored the new tokens' keys and values.
/// `window` as AttentionMask's. Shapes: qkv rows x qkv_width; y rows x width.
void cached_attention(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                      std::span<const KeyValueCache> caches, std::int64_t window,
                      const TensorView& y);

/// Appends each sequence's new keys and values to its cache after the `past` ones. Shapes: as
/// cached_attention.
void append_to_cache(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                     std::span<const KeyValueCache> caches);

/// Direction of rotary().
enum class Rotation { kForward, kBackward };

/// Applies rotary position embedding to the queries and keys in qkv, in place: rotates elements i
/// and i + rotated / 2 of a head by the angle of pair i, position = offset + row % tokens, and
/// multiplies them by the scaling's magnitude. kBackward rotates the other way, which is the
/// gradient. Pre: angles.rotated(head_size) is even and not 0. Source: Su et al., "RoFormer", arXiv
/// 2104.09864, with the half-split layout of GPT-NeoX and Llama, and GPT-NeoX's share.
void rotary(Context& context, const AttentionShape& shape, const RotaryAngles& angles,
            std::int64_t offset, Rotation rotation, const TensorView& qkv);

}  // namespace strata::ops
