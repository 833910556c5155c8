#pragma once

#include "strata/nn/transformer.hpp"

namespace strata::nn {

/// The options of a preset as its authors published them; kGpt and kLlama leave the sizes open.
/// Pre: is_transformer(preset), or kNone.
[[nodiscard]] TransformerOptions published_sizes(Preset preset);

}  // namespace strata::nn
