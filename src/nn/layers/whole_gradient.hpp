#pragma once

#include "strata/nn/layer.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"

namespace strata::nn {

/// Computes the gradient of dropout's input for all rows in `whole`, from the output's gradient for
/// the rows of this rank. Shapes: dy own rows x width; mask (for dropout > 0) as dy; whole rows x
/// width. Communication: for kTokens an all-gather over the tensor group.
inline void make_whole_gradient(const LayerPass& pass, Placement placement,
                                const ConstTensorView& dy, double dropout,
                                const ConstTensorView& mask, const TensorView& whole) {
  const std::int64_t width = dy.shape().back();
  const bool is_split = placement == Placement::kTokens;
  const std::int64_t first =
      is_split ? pass.shards.own_rows(whole.count() / width).begin : std::int64_t{0};
  const TensorView own = whole.flat_slice(first * width, dy.count()).reshaped(dy.shape());
  if (dropout > 0.0) {
    ops::dropout_backward(pass.context, dy, mask, dropout, own);
  } else {
    ops::copy(pass.context, dy, own);
  }
  if (is_split) {
    pass.shards.all_gather_rows(whole);
  }
}

}  // namespace strata::nn
