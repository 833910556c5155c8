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
  kLlama2B7,
  kLlama2B13,
  kLlama2B70,
  kLlama3B8,
  kLlama3B70,
  kLenet,
  kCifar10Cnn,
  kResnet20,
  kResnet56,
  kResnet18,
  kResnet50,
  kVgg16
};

constexpr auto enum_names(Preset) {
  return names_in_order("none", "gpt", "llama", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m",
                        "tinyllama-1b", "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b",
                        "llama3-70b", "lenet", "cifar10-cnn", "resnet20", "resnet56", "resnet18",
                        "resnet50", "vgg16");
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
