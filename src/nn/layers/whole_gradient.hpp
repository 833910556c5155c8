#pragma once

#include "strata/nn/layer.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/row_pieces.hpp"

namespace strata::nn {

/// Computes the gradient of dropout's input for all rows in `whole`, unless that is empty, from the
/// output's gradient for the rows of this rank. Shapes: dy own rows x width; mask (for dropout > 0)
/// as dy; whole rows x width. Communication: for kTokens starts all-gathers over the tensor group.
[[nodiscard]] inline RowGather begin_whole_gradient(const LayerPass& pass, Placement placement,
                                                    const ConstTensorView& dy, double dropout,
                                                    const ConstTensorView& mask,
                                                    const TensorView& whole) {
  RowGather gather(pass, placement, whole);
  if (whole.empty()) {
    return gather;
  }
  for (const RowPiece& piece : row_pieces(pass, placement, whole.shape()[0])) {
    const TensorView own = row_range(whole, piece.own);
    if (dropout > 0.0) {
      ops::dropout_backward(pass.context, row_range(dy, piece.local), row_range(mask, piece.local),
                            dropout, own);
    } else {
      ops::copy(pass.context, row_range(dy, piece.local), own);
    }
    gather.begin(piece);
  }
  return gather;
}

}  // namespace strata::nn
