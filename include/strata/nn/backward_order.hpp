#pragma once

#include "strata/core/enum_names.hpp"

namespace strata::nn {

/// Whether weight gradients are a pass of their own.
enum class BackwardOrder {
  kFused,  ///< both gradients layer by layer, after which a stage sends its input gradient;
           ///< activation gradients reuse each other's memory
  kSplit   ///< the input gradients of all layers, then the weight gradients of all: the previous
           ///< stage gets its gradient earlier
};

constexpr auto enum_names(BackwardOrder) {
  return names_in_order("fused", "split");
}

}  // namespace strata::nn
