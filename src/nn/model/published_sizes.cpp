#include "model/published_sizes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "strata/core/error.hpp"

namespace strata::nn {
namespace {

/// What the rows of a family's table differ in.
struct Sizes {
  std::int64_t blocks = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
};

TransformerOptions with_sizes(const Sizes& sizes) {
  return {.blocks = sizes.blocks,
          .width = sizes.width,
          .heads = sizes.heads,
          .kv_heads = sizes.kv_heads,
          .hidden = sizes.hidden,
          .context = sizes.context,
          .vocabulary = sizes.vocabulary};
}

/// Source: Radford et al., "Language models are unsupervised multitask learners", 2019.
TransformerOptions gpt2(std::int64_t blocks, std::int64_t width, std::int64_t heads) {
  TransformerOptions o = with_sizes(
      {.blocks = blocks, .width = width, .heads = heads, .vocabulary = 50257, .context = 1024});
  o.norm = NormChoice::kLayerNorm;
  o.mlp = MlpKind::kGelu;
  o.positions = PositionChoice::kLearned;
  o.bias = Switch::kOn;
  o.tied = Switch::kOn;
  return o;
}

/// Source: Touvron et al., "Llama 2", arXiv 2307.09288; Grattafiori et al., "The Llama 3 herd of
/// models", arXiv 2407.21783.
TransformerOptions llama(const Sizes& sizes, double rotary_base = 0.0, Switch tied = Switch::kOff) {
  TransformerOptions o = with_sizes(sizes);
  o.norm = NormChoice::kRmsNorm;
  o.mlp = MlpKind::kSwiglu;
  o.positions = PositionChoice::kRotary;
  o.rotary_base = rotary_base;
  o.bias = Switch::kOff;
  o.tied = tied;
  return o;
}

/// Source: Touvron et al., "LLaMA", arXiv 2302.13971.
TransformerOptions llama1(const Sizes& sizes, double epsilon = 1e-6) {
  TransformerOptions o = llama(sizes);
  o.vocabulary = 32000;
  o.context = 2048;
  o.epsilon = epsilon;
  return o;
}

TransformerOptions llama31(const Sizes& sizes, double factor, Switch tied) {
  TransformerOptions o = llama(sizes, 500000.0, tied);
  o.rotary_scaling = {.kind = ops::RotaryScalingKind::kLlama3, .factor = factor};
  return o;
}

/// Source: Qwen team, "Qwen2.5 technical report", arXiv 2412.15115.
TransformerOptions qwen2(const Sizes& sizes, Switch tied) {
  TransformerOptions o = llama(sizes, 1e6, tied);
  o.epsilon = 1e-6;
  o.context = 32768;
  o.family.qkv_bias = Switch::kOn;
  return o;
}

/// Source: Qwen team, "Qwen3 technical report", arXiv 2505.09388.
TransformerOptions qwen3(const Sizes& sizes, Switch tied) {
  TransformerOptions o = llama(sizes, 1e6, tied);
  o.epsilon = 1e-6;
  o.context = 40960;
  o.vocabulary = 151936;
  o.family.head_size = 128;
  o.family.qk_norm = QkNorm::kHead;
  return o;
}

/// Source: Jiang et al., "Mistral 7B", arXiv 2310.06825, versions 0.1, with a window, and 0.3; of
/// others: their config.json.
TransformerOptions mistral(const Sizes& sizes, double rotary_base = 1e6, std::int64_t window = 0) {
  TransformerOptions o = llama(sizes, rotary_base);
  o.attention_window = window;
  o.family.head_size = 128;
  return o;
}

/// Source: Bakouch et al., "SmolLM3", 2025: every fourth block without rotary positions.
TransformerOptions smollm3(const Sizes& sizes) {
  TransformerOptions o = llama(sizes, 5e6, Switch::kOn);
  o.epsilon = 1e-6;
  o.family.unrotated_every = 4;
  return o;
}

/// `score_width`: scores are divided by its root.
TransformerOptions gemma(const Sizes& sizes, std::int64_t head_size, double score_width,
                         std::int64_t window, double rotary_base) {
  TransformerOptions o = llama(sizes, rotary_base, Switch::kOn);
  o.epsilon = 1e-6;
  o.mlp = MlpKind::kGeglu;
  o.attention_window = window;
  o.family.head_size = head_size;
  o.family.norm_places = NormPlaces::kBoth;
  o.family.unit_offset = Switch::kOn;
  const bool is_default = score_width == static_cast<double>(head_size);
  o.family.attention_scale = is_default ? 0.0 : 1.0 / std::sqrt(score_width);
  o.family.embedding_scale = std::sqrt(static_cast<double>(sizes.width));
  return o;
}

/// Source: Gemma team, "Gemma 2", arXiv 2408.00118.
TransformerOptions gemma2(const Sizes& sizes, std::int64_t head_size, double score_width) {
  TransformerOptions o = gemma(sizes, head_size, score_width, 4096, 10000.0);
  o.vocabulary = 256000;
  o.context = 8192;
  o.family.attention_softcap = 50.0;
  o.family.logit_softcap = 30.0;
  o.family.global_every = 2;
  return o;
}

/// Source: Gemma team, "Gemma 3 technical report", arXiv 2503.19786; the text models.
TransformerOptions gemma3(const Sizes& sizes, std::int64_t head_size, double score_width,
                          std::int64_t window) {
  TransformerOptions o = gemma(sizes, head_size, score_width, window, 1e6);
  o.family.qk_norm = QkNorm::kHead;
  o.family.global_every = 6;
  o.family.local_rotary_base = 10000.0;
  return o;
}

TransformerOptions gemma3_long(const Sizes& sizes, std::int64_t head_size, double score_width) {
  TransformerOptions o = gemma3(sizes, head_size, score_width, 1024);
  o.rotary_scaling = {.kind = ops::RotaryScalingKind::kLinear, .factor = 8.0};
  return o;
}

/// Source: OLMo team, "2 OLMo 2 Furious", arXiv 2501.00656.
TransformerOptions olmo2(const Sizes& sizes) {
  TransformerOptions o = llama(sizes, 500000.0);
  o.epsilon = 1e-6;
  o.vocabulary = 100352;
  o.context = 4096;
  o.family.norm_places = NormPlaces::kAfter;
  o.family.qk_norm = QkNorm::kWidth;
  return o;
}

/// Source: Abdin et al., "Phi-3 technical report", arXiv 2404.14219, with its window of 2,047.
TransformerOptions phi3(const Sizes& sizes) {
  TransformerOptions o = llama(sizes, 10000.0);
  o.attention_window = 2047;
  return o;
}

/// Source: Abouelenin et al., "Phi-4-mini technical report", arXiv 2503.01743, with the factors and
/// the window of its config.json.
TransformerOptions phi4_mini() {
  constexpr std::array kLongFactors{
      1.0,         1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817,
      2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023,
      4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,
      10.4687158,  11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807,
      22.90118105, 25.61086418, 28.64115884, 32.03,       32.1,        32.13,       32.23,
      32.6,        32.61,       32.64,       32.66,       32.7,        32.71,       32.93,
      32.97,       33.28,       33.49,       33.5,        44.16,       47.77};
  TransformerOptions o = llama({32, 3072, 24, 8, 8192, 200064, 131072}, 10000.0, Switch::kOn);
  o.attention_window = 262144;
  o.family.rotary_share = 0.75;
  o.rotary_scaling = {.kind = ops::RotaryScalingKind::kLongrope, .factor = 32.0, .context = 4096.0};
  ops::PairFactors& shorter = o.rotary_scaling.factors;
  ops::PairFactors& longer = o.rotary_scaling.long_factors;
  shorter.count = longer.count = std::ssize(kLongFactors);
  std::fill_n(shorter.values.begin(), shorter.count, 1.0);
  std::ranges::copy(kLongFactors, longer.values.begin());
  return o;
}

/// Source: Biderman et al., "Pythia", arXiv 2304.01373.
TransformerOptions pythia(std::int64_t blocks, std::int64_t width, std::int64_t heads,
                          std::int64_t vocabulary = 50304) {
  TransformerOptions o = gpt2(blocks, width, heads);
  o.positions = PositionChoice::kRotary;
  o.context = 2048;
  o.vocabulary = vocabulary;
  o.tied = Switch::kOff;
  o.family.rotary_share = 0.25;
  o.mlp = MlpKind::kGeluErf;
  o.family.parallel_residual = Switch::kOn;
  return o;
}

const std::map<Preset, TransformerOptions>& table() {
  using enum Preset;
  constexpr Switch kTied = Switch::kOn;
  constexpr Switch kUntied = Switch::kOff;
  // Blocks, width, heads, key-value heads, hidden units, token ids, tokens.
  static const std::map<Preset, TransformerOptions> kTable{
      {kGpt2M124, gpt2(12, 768, 12)},
      {kGpt2M355, gpt2(24, 1024, 16)},
      {kGpt2M774, gpt2(36, 1280, 20)},
      {kGpt2M1558, gpt2(48, 1600, 25)},
      {kTinyllamaB1, llama({22, 2048, 32, 4, 5632, 32000, 2048})},
      {kLlama1B7, llama1({32, 4096, 32, 32, 11008})},
      {kLlama1B13, llama1({40, 5120, 40, 40, 13824})},
      {kLlama1B33, llama1({60, 6656, 52, 52, 17920})},
      {kLlama1B65, llama1({80, 8192, 64, 64, 22016}, 1e-5)},
      {kLlama2B7, llama({32, 4096, 32, 32, 11008, 32000, 4096})},
      {kLlama2B13, llama({40, 5120, 40, 40, 13824, 32000, 4096})},
      {kLlama2B70, llama({80, 8192, 64, 8, 28672, 32000, 4096})},
      {kLlama3B8, llama({32, 4096, 32, 8, 14336, 128256, 8192}, 500000.0)},
      {kLlama3B70, llama({80, 8192, 64, 8, 28672, 128256, 8192}, 500000.0)},
      {kLlama31B8, llama31({32, 4096, 32, 8, 14336, 128256, 131072}, 8.0, kUntied)},
      {kLlama31B70, llama31({80, 8192, 64, 8, 28672, 128256, 131072}, 8.0, kUntied)},
      {kLlama31B405, llama31({126, 16384, 128, 8, 53248, 128256, 131072}, 8.0, kUntied)},
      {kLlama32B1, llama31({16, 2048, 32, 8, 8192, 128256, 131072}, 32.0, kTied)},
      {kLlama32B3, llama31({28, 3072, 24, 8, 8192, 128256, 131072}, 32.0, kTied)},
      {kQwen25B05, qwen2({24, 896, 14, 2, 4864, 151936}, kTied)},
      {kQwen25B15, qwen2({28, 1536, 12, 2, 8960, 151936}, kTied)},
      {kQwen25B3, qwen2({36, 2048, 16, 2, 11008, 151936}, kTied)},
      {kQwen25B7, qwen2({28, 3584, 28, 4, 18944, 152064}, kUntied)},
      {kQwen25B14, qwen2({48, 5120, 40, 8, 13824, 152064}, kUntied)},
      {kQwen25B32, qwen2({64, 5120, 40, 8, 27648, 152064}, kUntied)},
      {kQwen25B72, qwen2({80, 8192, 64, 8, 29568, 152064}, kUntied)},
      {kQwen3B06, qwen3({28, 1024, 16, 8, 3072}, kTied)},
      {kQwen3B17, qwen3({28, 2048, 16, 8, 6144}, kTied)},
      {kQwen3B4, qwen3({36, 2560, 32, 8, 9728}, kTied)},
      {kQwen3B8, qwen3({36, 4096, 32, 8, 12288}, kUntied)},
      {kQwen3B14, qwen3({40, 5120, 40, 8, 17408}, kUntied)},
      {kQwen3B32, qwen3({64, 5120, 64, 8, 25600}, kUntied)},
      {kMistralV01B7, mistral({32, 4096, 32, 8, 14336, 32000, 32768}, 10000.0, 4096)},
      {kMistralB7, mistral({32, 4096, 32, 8, 14336, 32768, 32768})},
      {kMistralNemoB12, mistral({40, 5120, 32, 8, 14336, 131072, 131072})},
      {kMistralSmall31B24, mistral({40, 5120, 32, 8, 32768, 131072, 131072}, 1e9)},
      {kSmollm2M135, llama({30, 576, 9, 3, 1536, 49152, 8192}, 100000.0, kTied)},
      {kSmollm2M360, llama({32, 960, 15, 5, 2560, 49152, 8192}, 100000.0, kTied)},
      {kSmollm2B17, llama({24, 2048, 32, 32, 8192, 49152, 8192}, 130000.0, kTied)},
      {kSmollm3B3, smollm3({36, 2048, 16, 4, 11008, 128256, 65536})},
      {kGemma2B2, gemma2({26, 2304, 8, 4, 9216}, 256, 256.0)},
      {kGemma2B9, gemma2({42, 3584, 16, 8, 14336}, 256, 256.0)},
      {kGemma2B27, gemma2({46, 4608, 32, 16, 36864}, 128, 144.0)},
      {kGemma3M270, gemma3({18, 640, 4, 1, 2048, 262144, 32768}, 256, 256.0, 512)},
      {kGemma3B1, gemma3({26, 1152, 4, 1, 6912, 262144, 32768}, 256, 256.0, 512)},
      {kGemma3B4, gemma3_long({34, 2560, 8, 4, 10240, 262208, 131072}, 256, 256.0)},
      {kGemma3B12, gemma3_long({48, 3840, 16, 8, 15360, 262208, 131072}, 256, 256.0)},
      {kGemma3B27, gemma3_long({62, 5376, 32, 16, 21504, 262208, 131072}, 128, 168.0)},
      {kOlmo2B1, olmo2({16, 2048, 16, 16, 8192})},
      {kOlmo2B7, olmo2({32, 4096, 32, 32, 11008})},
      {kOlmo2B13, olmo2({40, 5120, 40, 40, 13824})},
      {kOlmo2B32, olmo2({64, 5120, 40, 8, 27648})},
      {kPhi3MiniB4, phi3({32, 3072, 32, 32, 8192, 32064, 4096})},
      {kPhi3MediumB14, phi3({40, 5120, 40, 10, 17920, 32064, 4096})},
      {kPhi4MiniB4, phi4_mini()},
      // Source: Abdin et al., "Phi-4 technical report", arXiv 2412.08905.
      {kPhi4B14, llama({40, 5120, 40, 10, 17920, 100352, 16384}, 250000.0)},
      {kPythiaM70, pythia(6, 512, 8)},
      {kPythiaM160, pythia(12, 768, 12)},
      {kPythiaM410, pythia(24, 1024, 16)},
      {kPythiaB1, pythia(16, 2048, 8)},
      {kPythiaB14, pythia(24, 2048, 16)},
      {kPythiaB28, pythia(32, 2560, 32)},
      {kPythiaB69, pythia(32, 4096, 32, 50432)},
      {kPythiaB12, pythia(36, 5120, 40, 50688)},
  };
  return kTable;
}

}  // namespace

TransformerOptions published_sizes(Preset preset) {
  if (preset == Preset::kNone || preset == Preset::kGpt) {
    TransformerOptions open = gpt2(0, 0, 0);
    open.context = 0;
    open.vocabulary = 0;
    return open;
  }
  if (preset == Preset::kLlama) {
    return llama({});
  }
  require(!is_convnet(preset), "{} is no transformer", name_of(preset));
  return table().at(preset);
}

}  // namespace strata::nn
