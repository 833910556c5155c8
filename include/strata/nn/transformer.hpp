#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/core/switch.hpp"
#include "strata/nn/attention_kinds.hpp"
#include "strata/nn/mlp_kind.hpp"
#include "strata/nn/preset.hpp"
#include "strata/ops/rotary.hpp"

namespace strata::nn {

enum class NormChoice { kAuto, kLayerNorm, kRmsNorm };

constexpr auto enum_names(NormChoice) {
  return names_in_order("auto", "layer_norm", "rms_norm");
}
enum class PositionChoice { kAuto, kLearned, kRotary, kNone };

constexpr auto enum_names(PositionChoice) {
  return names_in_order("auto", "learned", "rotary", "none");
}

/// Where the norms of a sublayer are.
enum class NormPlaces {
  kBefore,  ///< of its input
  kAfter,   ///< of its output, before the residual is added
  kBoth
};

constexpr auto enum_names(NormPlaces) {
  return names_in_order("before", "after", "both");
}

/// What some families of transformers have, and others not.
struct FamilyOptions {
  std::int64_t head_size = 0;  ///< 0: width / heads
  /// Whether the product of queries, keys and values has a bias; nothing: as
  /// TransformerOptions::bias.
  std::optional<Switch> qkv_bias;
  QkNorm qk_norm = QkNorm::kNone;
  NormPlaces norm_places = NormPlaces::kBefore;
  /// Whether RMS norms multiply by 1 + weight.
  Switch unit_offset = Switch::kOff;
  /// Of each head's elements, the share that rotary positions turn.
  double rotary_share = 1.0;
  double attention_scale = 0.0;    ///< of scores; 0: 1 / sqrt(head size)
  double attention_softcap = 0.0;  ///< bound of scores; 0: none
  double logit_softcap = 0.0;      ///< bound of logits; 0: none
  double embedding_scale = 1.0;    ///< resolved() sets another to the root of the width
  /// Every n-th block, counted from 1, attends to all earlier tokens, the others in
  /// attention_window; 0: all in the window.
  std::int64_t global_every = 0;
  /// Of the blocks in the window, without scaling; 0: as the others.
  double local_rotary_base = 0.0;
  /// Every n-th block, counted from 1, has no rotary positions; 0: none.
  std::int64_t unrotated_every = 0;
  /// Whether the MLP of a block reads what its attention reads.
  Switch parallel_residual = Switch::kOff;

  friend bool operator==(const FamilyOptions&, const FamilyOptions&) = default;
};

/// The dimensions of a decoder-only transformer; 0, kAuto and nothing stand for the preset's.
struct TransformerOptions {
  Preset preset = Preset::kNone;
  std::int64_t blocks = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< 0 also in presets without grouped-query attention
  std::int64_t hidden = 0;    ///< of the MLP
  /// Tokens of a sample, and the number of learned positions.
  std::int64_t context = 0;
  /// Number of token ids; 0: that of the data set.
  std::int64_t vocabulary = 0;
  NormChoice norm = NormChoice::kAuto;
  double epsilon = 0.0;  ///< of every norm; 0: the preset's, else 1e-5
  std::optional<MlpKind> mlp;
  PositionChoice positions = PositionChoice::kAuto;
  double rotary_base = 0.0;
  ops::RotaryScaling rotary_scaling;
  std::optional<Switch> bias;
  std::optional<Switch> tied;
  double dropout = 0.0;
  AttentionMaskKind attention_mask = AttentionMaskKind::kCausal;
  /// Tokens that a token attends to, itself included; 0: no limit.
  std::int64_t attention_window = 0;
  /// Whether learned positions count from the start of a document.
  Switch reset_positions = Switch::kOff;
  FamilyOptions family;

  friend bool operator==(const TransformerOptions&, const TransformerOptions&) = default;
};

/// Elements of an attention head. Pre: heads > 0.
[[nodiscard]] std::int64_t head_size_of(const TransformerOptions& options);

/// The options with the preset's values filled in.
/// Pre: the preset is no convolutional network. Throws: Error(kUsage) naming the first dimension
/// that neither sets, or heads that do not divide the width.
[[nodiscard]] TransformerOptions resolved(const TransformerOptions& options);

/// The `layer =` lines of a transformer: embedding, one attention and one MLP sublayer for each
/// block, norm and head. Initial weights have a standard deviation of 0.02, output projections 0.02
/// / sqrt(2 blocks). Pre: resolved. Source: Radford et al., "Language models are unsupervised
/// multitask learners", 2019; Touvron et al., "Llama 2", arXiv 2307.09288.
[[nodiscard]] std::vector<std::string> transformer_layers(const TransformerOptions& options);

}  // namespace strata::nn
