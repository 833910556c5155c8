#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::nn {

/// Transformers that a config can name instead of spelling its layers.
enum class Preset {
  kNone,
  kGpt,    ///< GPT-2's architecture in any size
  kLlama,  ///< Llama's architecture in any size
  kGpt2_124m,
  kGpt2_355m,
  kGpt2_774m,
  kGpt2_1558m,
  kTinyllama_1b,
  kLlama2_7b,
  kLlama2_13b,
  kLlama2_70b,
  kLlama3_8b,
  kLlama3_70b
};

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
/// Throws: Error(kUsage) naming the first dimension that nobody gives, or heads that do not fit.
[[nodiscard]] TransformerOptions resolved(const TransformerOptions& options);

/// The `layer =` lines of a transformer: embedding, an attention and an MLP sublayer a block, norm
/// and head. Initial weights have the deviation 0.02, those of output projections 0.02 / sqrt(2
/// blocks). Pre: resolved. Source: Radford et al., "Language models are unsupervised multitask
/// learners", 2019; Touvron et al., "Llama 2", arXiv 2307.09288.
[[nodiscard]] std::vector<std::string> transformer_layers(const TransformerOptions& options);

}  // namespace strata::nn

namespace strata {
template <>
struct EnumNames<nn::Preset> {
  static constexpr std::array<std::pair<nn::Preset, std::string_view>, 13> kTable{
      {{nn::Preset::kNone, "none"},
       {nn::Preset::kGpt, "gpt"},
       {nn::Preset::kLlama, "llama"},
       {nn::Preset::kGpt2_124m, "gpt2-124m"},
       {nn::Preset::kGpt2_355m, "gpt2-355m"},
       {nn::Preset::kGpt2_774m, "gpt2-774m"},
       {nn::Preset::kGpt2_1558m, "gpt2-1558m"},
       {nn::Preset::kTinyllama_1b, "tinyllama-1b"},
       {nn::Preset::kLlama2_7b, "llama2-7b"},
       {nn::Preset::kLlama2_13b, "llama2-13b"},
       {nn::Preset::kLlama2_70b, "llama2-70b"},
       {nn::Preset::kLlama3_8b, "llama3-8b"},
       {nn::Preset::kLlama3_70b, "llama3-70b"}}};
};
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
      {{nn::Choice::kAuto, "auto"}, {nn::Choice::kNo, "no"}, {nn::Choice::kYes, "yes"}}};
};
}  // namespace strata
