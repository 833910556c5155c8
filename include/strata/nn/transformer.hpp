#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/nn/preset.hpp"

namespace strata::nn {

enum class NormChoice { kAuto, kLayerNorm, kRmsNorm };
enum class MlpChoice { kAuto, kGelu, kRelu, kSwiglu };
enum class PositionChoice { kAuto, kLearned, kRotary, kNone };
enum class Choice { kAuto, kNo, kYes };

/// The dimensions of a decoder-only transformer. 0 and "auto" stand for the preset's.
struct TransformerOptions {
  Preset preset = Preset::kNone;
  std::int64_t blocks = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< 0 also where the preset has as many as heads
  std::int64_t hidden = 0;    ///< of the MLP
  /// Tokens of a sample, and the number of learned positions.
  std::int64_t context = 0;
  /// Token ids; 0: as many as the data set has.
  std::int64_t vocabulary = 0;
  NormChoice norm = NormChoice::kAuto;
  MlpChoice mlp = MlpChoice::kAuto;
  PositionChoice positions = PositionChoice::kAuto;
  double rotary_base = 0.0;
  Choice bias = Choice::kAuto;
  Choice tied = Choice::kAuto;
  double dropout = 0.0;

  friend bool operator==(const TransformerOptions&, const TransformerOptions&) = default;
};

/// The options with everything filled in that the preset decides.
/// Pre: the preset is no convolutional network. Throws: Error(kUsage) naming the first dimension
/// that nobody gives, or heads that do not fit.
[[nodiscard]] TransformerOptions resolved(const TransformerOptions& options);

/// The `layer =` lines of a transformer: embedding, an attention and an MLP sublayer a block, norm
/// and head. Initial weights have the deviation 0.02, those of output projections 0.02 / sqrt(2
/// blocks). Pre: resolved. Source: Radford et al., "Language models are unsupervised multitask
/// learners", 2019; Touvron et al., "Llama 2", arXiv 2307.09288.
[[nodiscard]] std::vector<std::string> transformer_layers(const TransformerOptions& options);

}  // namespace strata::nn

namespace strata {
template <>
struct EnumNames<nn::NormChoice> {
  static constexpr std::array<std::pair<nn::NormChoice, std::string_view>, 3> kTable{
      {{nn::NormChoice::kAuto, "auto"},
       {nn::NormChoice::kLayerNorm, "layer_norm"},
       {nn::NormChoice::kRmsNorm, "rms_norm"}}};
};
template <>
struct EnumNames<nn::MlpChoice> {
  static constexpr std::array<std::pair<nn::MlpChoice, std::string_view>, 4> kTable{
      {{nn::MlpChoice::kAuto, "auto"},
       {nn::MlpChoice::kGelu, "gelu"},
       {nn::MlpChoice::kRelu, "relu"},
       {nn::MlpChoice::kSwiglu, "swiglu"}}};
};
template <>
struct EnumNames<nn::PositionChoice> {
  static constexpr std::array<std::pair<nn::PositionChoice, std::string_view>, 4> kTable{
      {{nn::PositionChoice::kAuto, "auto"},
       {nn::PositionChoice::kLearned, "learned"},
       {nn::PositionChoice::kRotary, "rotary"},
       {nn::PositionChoice::kNone, "none"}}};
};
template <>
struct EnumNames<nn::Choice> {
  static constexpr std::array<std::pair<nn::Choice, std::string_view>, 3> kTable{
      {{nn::Choice::kAuto, "auto"}, {nn::Choice::kNo, "off"}, {nn::Choice::kYes, "on"}}};
};
}  // namespace strata
