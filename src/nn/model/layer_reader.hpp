#pragma once

#include <span>
#include <string>
#include <vector>

#include "strata/nn/model.hpp"

#include "layers/layer_kinds.hpp"

namespace strata::nn {

/// The layers that `layer =` lines spell, in the order in which they run; `site` is that of the
/// first layer, without its name. Throws: Error(kUsage).
[[nodiscard]] std::vector<ModelLayer> read_layers(std::span<const std::string> lines,
                                                  const LayerSite& site);

}  // namespace strata::nn
