#pragma once

#include <array>
#include <string_view>
#include <utility>

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

/// Whether a preset classifies images.
[[nodiscard]] constexpr bool is_convnet(Preset preset) {
  return preset >= Preset::kLenet;
}
/// Whether a preset is a decoder-only transformer.
[[nodiscard]] constexpr bool is_transformer(Preset preset) {
  return preset != Preset::kNone && !is_convnet(preset);
}

}  // namespace strata::nn

namespace strata {
template <>
struct EnumNames<nn::Preset> {
  static constexpr std::array<std::pair<nn::Preset, std::string_view>, 20> kTable{
      {{nn::Preset::kNone, "none"},
       {nn::Preset::kGpt, "gpt"},
       {nn::Preset::kLlama, "llama"},
       {nn::Preset::kGpt2M124, "gpt2-124m"},
       {nn::Preset::kGpt2M355, "gpt2-355m"},
       {nn::Preset::kGpt2M774, "gpt2-774m"},
       {nn::Preset::kGpt2M1558, "gpt2-1558m"},
       {nn::Preset::kTinyllamaB1, "tinyllama-1b"},
       {nn::Preset::kLlama2B7, "llama2-7b"},
       {nn::Preset::kLlama2B13, "llama2-13b"},
       {nn::Preset::kLlama2B70, "llama2-70b"},
       {nn::Preset::kLlama3B8, "llama3-8b"},
       {nn::Preset::kLlama3B70, "llama3-70b"},
       {nn::Preset::kLenet, "lenet"},
       {nn::Preset::kCifar10Cnn, "cifar10-cnn"},
       {nn::Preset::kResnet20, "resnet20"},
       {nn::Preset::kResnet56, "resnet56"},
       {nn::Preset::kResnet18, "resnet18"},
       {nn::Preset::kResnet50, "resnet50"},
       {nn::Preset::kVgg16, "vgg16"}}};
};
}  // namespace strata
