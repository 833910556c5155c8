#pragma once

#include "strata/core/enum_names.hpp"

namespace strata::nn {

/// Networks that a config names instead of listing their layers.
enum class Preset {
  kNone,
  kGpt,    ///< GPT-2's architecture in any size
  kLlama,  ///< Llama's architecture in any size
  kGpt2M124,
  kGpt2M355,
  kGpt2M774,
  kGpt2M1558,
  kTinyllamaB1,
  kLlama1B7,
  kLlama1B13,
  kLlama1B33,
  kLlama1B65,
  kLlama2B7,
  kLlama2B13,
  kLlama2B70,
  kLlama3B8,
  kLlama3B70,
  kLlama31B8,
  kLlama31B70,
  kLlama31B405,
  kLlama32B1,
  kLlama32B3,
  kQwen25B05,
  kQwen25B15,
  kQwen25B3,
  kQwen25B7,
  kQwen25B14,
  kQwen25B32,
  kQwen25B72,
  kQwen3B06,
  kQwen3B17,
  kQwen3B4,
  kQwen3B8,
  kQwen3B14,
  kQwen3B32,
  kMistralV01B7,
  kMistralB7,
  kMistralNemoB12,
  kMistralSmall31B24,
  kSmollm2M135,
  kSmollm2M360,
  kSmollm2B17,
  kSmollm3B3,
  kGemma2B2,
  kGemma2B9,
  kGemma2B27,
  kGemma3M270,
  kGemma3B1,
  kGemma3B4,
  kGemma3B12,
  kGemma3B27,
  kOlmo2B1,
  kOlmo2B7,
  kOlmo2B13,
  kOlmo2B32,
  kPhi3MiniB4,
  kPhi3MediumB14,
  kPhi4MiniB4,
  kPhi4B14,
  kPythiaM70,
  kPythiaM160,
  kPythiaM410,
  kPythiaB1,
  kPythiaB14,
  kPythiaB28,
  kPythiaB69,
  kPythiaB12,
  kLenet,
  kCifar10Cnn,
  kResnet20,
  kResnet56,
  kResnet18,
  kResnet50,
  kVgg16
};

constexpr auto enum_names(Preset) {
  return names_in_order(
      "none", "gpt", "llama", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m", "tinyllama-1b",
      "llama1-7b", "llama1-13b", "llama1-33b", "llama1-65b", "llama2-7b", "llama2-13b",
      "llama2-70b", "llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b",
      "llama3.2-1b", "llama3.2-3b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b",
      "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b",
      "qwen3-8b", "qwen3-14b", "qwen3-32b", "mistral-7b-v0.1", "mistral-7b", "mistral-nemo-12b",
      "mistral-small3.1-24b", "smollm2-135m", "smollm2-360m", "smollm2-1.7b", "smollm3-3b",
      "gemma2-2b", "gemma2-9b", "gemma2-27b", "gemma3-270m", "gemma3-1b", "gemma3-4b", "gemma3-12b",
      "gemma3-27b", "olmo2-1b", "olmo2-7b", "olmo2-13b", "olmo2-32b", "phi3-mini-4k",
      "phi3-medium-4k", "phi4-mini", "phi4-14b", "pythia-70m", "pythia-160m", "pythia-410m",
      "pythia-1b", "pythia-1.4b", "pythia-2.8b", "pythia-6.9b", "pythia-12b", "lenet",
      "cifar10-cnn", "resnet20", "resnet56", "resnet18", "resnet50", "vgg16");
}

/// Whether a preset classifies images.
[[nodiscard]] constexpr bool is_convnet(Preset preset) {
  return preset >= Preset::kLenet;
}
/// Whether a preset is a decoder-only transformer.
[[nodiscard]] constexpr bool is_transformer(Preset preset) {
  return preset != Preset::kNone && !is_convnet(preset);
}

}  // namespace strata::nn
