#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::nn {

/// The matrices of a low-rank adapter, as in "blocks.0.attention.qkv.lora_a".
inline constexpr std::string_view kAdapterA = "lora_a";
inline constexpr std::string_view kAdapterB = "lora_b";

/// Whether a parameter of this name belongs to an adapter.
[[nodiscard]] inline bool is_adapter(std::string_view parameter) {
  const std::string_view part = parameter.substr(parameter.rfind('.') + 1);
  return part == kAdapterA || part == kAdapterB;
}

/// Low-rank adapters of the products of attention and MLP layers: y = x W^T + b + alpha / rank (x
/// A^T) B^T, with A rank x inputs and B outputs x rank, which begins at zero.
/// Source: Hu et al., "LoRA: low-rank adaptation of large language models", arXiv 2106.09685.
struct AdapterOptions {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 0.0;     ///< 0: the rank
  std::string products;   ///< names with commas between them, as in "qkv,output"; empty: all
};

/// The lines with adapters in attention and MLP layers.
/// Throws: Error(kUsage) for an unknown product, a line that has adapters already, or where no
/// layer has one of the products.
[[nodiscard]] std::vector<std::string> adapted_layers(std::vector<std::string> lines,
                                                      const AdapterOptions& adapters);

/// A line without its adapters.
[[nodiscard]] std::string without_adapters(const std::string& line);

}  // namespace strata::nn
