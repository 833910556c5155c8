#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// y = x rstd weight over the last dimension, with rstd = 1 / sqrt(mean(x^2) + epsilon).
/// Shapes: x, y rows x n (any leading dimensions count as rows); weight n in x's dtype; rstd rows
/// in compute_dtype(). Source: Zhang, Sennrich, "Root mean square layer normalization", arXiv
/// 1910.07467.
void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                      double epsilon, const TensorView& y, const TensorView& rstd);

/// dx = addend + rstd (g - xhat mean(g xhat)) with g = dy weight and xhat = x rstd. The addend may
/// be empty. In place (dx is dy or addend) is allowed.
void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const ConstTensorView& addend,
                             const TensorView& dx);

/// dweight = (or +=) sum of dy xhat, rows added as column_sum() does. Shapes: dweight n in
/// compute_dtype().
void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dweight, Accumulate accumulate);

/// Both of the above, with the same bits. dx may be dy or addend.
void rms_norm_backward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                       const ConstTensorView& rstd, const ConstTensorView& dy,
                       const ConstTensorView& addend, const TensorView& dx,
                       const TensorView& dweight, Accumulate accumulate);

}  // namespace strata::ops
