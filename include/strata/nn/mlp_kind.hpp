#pragma once

#include <optional>

#include "strata/core/enum_names.hpp"
#include "strata/ops/activation.hpp"

namespace strata::nn {

/// What lies between the products of an MLP: the ops::Activation or the ops::Gate of this name.
enum class MlpKind { kGelu, kGeluErf, kRelu, kSwiglu, kGeglu };

constexpr auto enum_names(MlpKind) {
  return names_in_order("gelu", "gelu_erf", "relu", "swiglu", "geglu");
}

/// The function of the gate, a product of its own; nothing where the kind has none.
[[nodiscard]] constexpr std::optional<ops::Gate> gate_of(MlpKind kind) {
  return enum_from_name<ops::Gate>(name_of(kind));
}

}  // namespace strata::nn
