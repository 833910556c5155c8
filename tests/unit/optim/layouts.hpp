#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/core/random.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/optim/optimizer.hpp"

namespace strata::optim::test {

/// The layout of parameters of these many elements, two a layer.
inline nn::ParameterLayout layout_with(const std::vector<std::int64_t>& counts) {
  std::vector<nn::ParameterSpec> specs;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    specs.push_back({.name = "p" + std::to_string(i),
                     .shape = i % 2 == 0 ? Shape{1, counts[i]} : Shape{counts[i]},
                     .layer = static_cast<std::int64_t>(i / 2)});
  }
  return nn::layout_of(specs, {0, static_cast<std::int64_t>(counts.size())});
}

/// The parameters of a model whose last layer borrows the first one's table, which shards divide.
/// Others lie before the table where it is owned and where it is borrowed, at different lengths.
inline std::vector<nn::ParameterSpec> tied_model() {
  const nn::ParameterSpec table{.name = "table", .shape = {70, 100}, .layer = 0, .split = 0};
  nn::ParameterSpec borrowed = table;
  borrowed.layer = 3;
  borrowed.ownership = nn::Ownership::kBorrowed;
  return {{.name = "first.bias", .shape = {1500}, .layer = 0},
          table,
          {.name = "up", .shape = {30, 90}, .layer = 1, .split = 1},
          {.name = "gain", .shape = {30}, .layer = 2},
          borrowed,
          {.name = "last.bias", .shape = {20}, .layer = 3}};
}

inline const std::vector<std::int64_t> kMixed{3000, 10, 1024, 1, 5000, 1025};

/// What one rank owns of weights, and the rule that updates it.
struct Optimizer {
  Optimizer(ops::Context& context, const OptimizerOptions& options, const Ownership& ownership,
            const TensorView& weights)
      : owned(context.device(), ownership, UpdateRule::states(options),
              compute_dtype(weights.dtype()), weights),
        rule(context, options, ownership.layout, owned, weights) {}

  OwnedTensors owned;
  UpdateRule rule;
};

/// Numbers of very different sizes where parameters lie, and zeros in the gaps between them.
inline std::vector<float> arena_numbers(const nn::ParameterLayout& layout, std::uint64_t subject) {
  const RandomStream stream(5, RandomPurpose::kSynthesise, subject);
  std::vector<float> values(static_cast<std::size_t>(layout.elements), 0.0F);
  for (const nn::PlacedParameter& placed : layout.parameters) {
    for (std::int64_t i = 0; i < placed.shape.count(); ++i) {
      const auto at = static_cast<std::uint64_t>(placed.offset + i);
      const auto words = stream.words(at);
      const auto mantissa = static_cast<float>(static_cast<std::int32_t>(words[1]));
      values[at] = mantissa * (words[0] % 2 == 0 ? 0x1p-31F : 0x1p-40F);
    }
  }
  return values;
}

inline TensorView view_of(std::vector<float>& values) {
  return {std::span(values), Shape{static_cast<std::int64_t>(values.size())}};
}
inline ConstTensorView view_of(const std::vector<float>& values) {
  return {std::span(values), Shape{static_cast<std::int64_t>(values.size())}};
}

}  // namespace strata::optim::test
