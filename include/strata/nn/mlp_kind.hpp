#pragma once

#include "strata/core/enum_names.hpp"

namespace strata::nn {

/// The activation of an MLP. kSwiglu and kGeglu multiply by a gate, a product of its own.
enum class MlpKind { kGelu, kGeluErf, kRelu, kSwiglu, kGeglu };

constexpr auto enum_names(MlpKind) {
  return names_in_order("gelu", "gelu_erf", "relu", "swiglu", "geglu");
}

[[nodiscard]] constexpr bool is_gated(MlpKind kind) {
  return kind == MlpKind::kSwiglu || kind == MlpKind::kGeglu;
}

}  // namespace strata::nn
