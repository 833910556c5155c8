#include "strata/nn/parameter.hpp"

#include <cmath>

#include "strata/core/random.hpp"

namespace strata::nn {

ParameterLayout layout_of(const std::vector<ParameterSpec>& all, const grid::Range& layers) {
  constexpr std::int64_t kBlock = ParameterLayout::kBlock;
  ParameterLayout layout;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].layer < layers.begin || all[i].layer >= layers.end) {
      continue;
    }
    layout.parameters.push_back(
        {.spec = all[i], .index = static_cast<std::int64_t>(i), .offset = layout.elements});
    layout.elements += (all[i].shape.count() + kBlock - 1) / kBlock * kBlock;
  }
  return layout;
}

void initialise(const ParameterSpec& spec, std::uint64_t seed, const TensorView& weight) {
  require(weight.shape() == spec.shape, "{} has the shape {}, not {}", spec.name, spec.shape.text(),
          weight.shape().text());
  const RandomStream stream(seed, RandomPurpose::kInitialise, subject_of(spec.name));
  const auto fan_in = static_cast<double>(spec.fan_in);
  const auto fan_out = static_cast<double>(spec.fan_out);
  const auto value = [&](std::uint64_t i) {
    switch (spec.initializer) {
      case Initializer::kFanIn:
        return (2.0 * stream.uniform(i) - 1.0) / std::sqrt(fan_in);
      case Initializer::kGlorot:
        return (2.0 * stream.uniform(i) - 1.0) * std::sqrt(6.0 / (fan_in + fan_out));
      case Initializer::kHe:
        return stream.normal(i) * std::sqrt(2.0 / fan_in);
      case Initializer::kNormal:
        return stream.normal(i) * 0.02;
      case Initializer::kOnes:
        return 1.0;
      case Initializer::kZeros:
        break;
    }
    return 0.0;
  };
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const std::span<T> elements = weight.host<T>();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements[i] = static_cast<T>(value(i));
    }
  });
}

}  // namespace strata::nn
