#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"

namespace strata::nn {

/// How the weights of a layer begin.
enum class Initializer {
  kFanIn,   ///< uniform in +-1 / sqrt(inputs); PyTorch's default for dense layers
  kGlorot,  ///< uniform in +-sqrt(6 / (inputs + outputs)); Keras' default
  kHe,      ///< normal with deviation sqrt(2 / inputs)
  kNormal,  ///< normal with deviation 0.02
  kZeros,
  kOnes
};

/// One weight tensor of a model: its global name and shape, the same on every grid.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Initializer initializer = Initializer::kZeros;
  /// Inputs and outputs of the layer, for the initializers that scale by them.
  std::int64_t fan_in = 1;
  std::int64_t fan_out = 1;
  /// The layer that holds it.
  std::int64_t layer = 0;
};

/// Where one parameter lies in the arenas of its stage.
struct PlacedParameter {
  ParameterSpec spec;
  /// Its index among all parameters of the model, which is the canonical order.
  std::int64_t index = 0;
  std::int64_t offset = 0;  ///< of its first element in the arena
};

/// The arena of a stage's parameters, shared by weights, gradients and optimizer state. Every
/// parameter begins at a multiple of kBlock elements, so that sums over blocks do not depend on how
/// the arena is sliced.
struct ParameterLayout {
  static constexpr std::int64_t kBlock = 1024;

  std::vector<PlacedParameter> parameters;
  std::int64_t elements = 0;  ///< a multiple of kBlock; gaps hold zeros
};

/// The layout of those parameters whose layer is in `layers`. Pre: `all` is in canonical order.
[[nodiscard]] ParameterLayout layout_of(const std::vector<ParameterSpec>& all,
                                        const grid::Range& layers);

/// Fills a weight from its initializer: element i is a function of (seed, name, i) alone.
/// Shapes: as the spec.
void initialise(const ParameterSpec& spec, std::uint64_t seed, const TensorView& weight);

}  // namespace strata::nn

namespace strata {
template <>
struct EnumNames<nn::Initializer> {
  static constexpr std::array<std::pair<nn::Initializer, std::string_view>, 6> kTable{
      {{nn::Initializer::kFanIn, "fan_in"},
       {nn::Initializer::kGlorot, "glorot"},
       {nn::Initializer::kHe, "he"},
       {nn::Initializer::kNormal, "normal"},
       {nn::Initializer::kZeros, "zeros"},
       {nn::Initializer::kOnes, "ones"}}};
};
}  // namespace strata
