#pragma once

#include "strata/core/enum_names.hpp"

namespace strata::nn {

/// The tokens before it that a token attends to.
enum class AttentionMaskKind {
  kCausal,   ///< all of its sample
  kDocument  ///< those of its document
};

constexpr auto enum_names(AttentionMaskKind) {
  return names_in_order("causal", "document");
}

}  // namespace strata::nn
