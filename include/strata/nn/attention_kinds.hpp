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

/// What queries and keys are divided by the root mean square of, before rotary positions.
enum class QkNorm {
  kNone,
  kHead,  ///< of each head
  kWidth  ///< of all heads together
};

constexpr auto enum_names(QkNorm) {
  return names_in_order("none", "head", "width");
}

}  // namespace strata::nn
