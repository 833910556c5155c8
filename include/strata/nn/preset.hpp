#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "strata/core/enum_names.hpp"

namespace strata::nn {

/// Networks that a config can name instead of spelling their layers.
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
  kLlama3_70b,
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
       {nn::Preset::kGpt2_124m, "gpt2-124m"},
       {nn::Preset::kGpt2_355m, "gpt2-355m"},
       {nn::Preset::kGpt2_774m, "gpt2-774m"},
       {nn::Preset::kGpt2_1558m, "gpt2-1558m"},
       {nn::Preset::kTinyllama_1b, "tinyllama-1b"},
       {nn::Preset::kLlama2_7b, "llama2-7b"},
       {nn::Preset::kLlama2_13b, "llama2-13b"},
       {nn::Preset::kLlama2_70b, "llama2-70b"},
       {nn::Preset::kLlama3_8b, "llama3-8b"},
       {nn::Preset::kLlama3_70b, "llama3-70b"},
       {nn::Preset::kLenet, "lenet"},
       {nn::Preset::kCifar10Cnn, "cifar10-cnn"},
       {nn::Preset::kResnet20, "resnet20"},
       {nn::Preset::kResnet56, "resnet56"},
       {nn::Preset::kResnet18, "resnet18"},
       {nn::Preset::kResnet50, "resnet50"},
       {nn::Preset::kVgg16, "vgg16"}}};
};
}  // namespace strata
