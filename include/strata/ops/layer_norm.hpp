#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// y = (x - mean) rstd weight + bias over the last dimension, with rstd = 1 / sqrt(variance +
/// epsilon). In place (y is x) is not allowed: the backward pass reads x.
/// Shapes: x, y rows x n (any leading dimensions count as rows); weight, bias n; mean, rstd rows in
/// compute_dtype() of x. The bias may be empty. Source: Ba, Kiros, Hinton, "Layer normalization",
/// arXiv 1607.06450.
void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd);

/// dx = addend + rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight and xhat = (x - mean)
/// rstd. The addend may be empty. In place (dx is dy or addend) is allowed.
/// Shapes: x, dy, addend, dx rows x n; weight n; mean, rstd rows.
void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& weight, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const ConstTensorView& addend, const TensorView& dx);

/// dweight = sum of dy xhat, dbias = sum of dy, rows added as column_sum() does.
/// Shapes: x, dy rows x n; mean, rstd rows; dweight, dbias n in compute_dtype() of x. An empty
/// dbias is not computed.
void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dweight,
                                const TensorView& dbias, Accumulate accumulate);

/// Both of the above, with the same bits. dx may be dy or addend.
void layer_norm_backward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& mean, const ConstTensorView& rstd,
                         const ConstTensorView& dy, const ConstTensorView& addend,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias,
                         Accumulate accumulate);

}  // namespace strata::ops
