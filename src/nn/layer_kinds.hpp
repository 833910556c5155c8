#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strata/nn/layer.hpp"

#include "layer_line.hpp"

namespace strata::nn {

/// What a layer is made from, beside its line.
struct LayerSite {
  std::string name;
  Shape input_shape;
  /// The model's seed, for layers that draw random numbers.
  std::uint64_t seed = 0;
};

/// Each takes what it understands out of the line. Throws: Error(kUsage) where the line or the
/// input shape does not fit.
std::unique_ptr<Layer> make_dense(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_activation(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_softmax(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_dropout(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_flatten(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_layer_norm(LayerLine& line, const LayerSite& site);

}  // namespace strata::nn
