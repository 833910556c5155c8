#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// What a norm measures a row's elements from: layer norm from the row's mean, RMS norm from zero.
/// With kZero the tensors of means and of biases are empty.
enum class Center { kMean, kZero };

/// What the weight of an RMS norm counts from: y = xhat weight, or y = xhat (1 + weight), where the
/// sum is computed in compute_dtype(). Source of kOne: the Gemma team, "Gemma: open models based on
/// Gemini research and technology", arXiv 2403.08295, and its published weights.
enum class WeightOffset { kZero, kOne };

/// A norm of rows. Pre: layer norm's weight counts from zero.
struct RowNorm {
  Center center = Center::kMean;
  WeightOffset offset = WeightOffset::kZero;
};

/// y = (x - mean) rstd weight + bias over the last dimension, with rstd = 1 / sqrt(variance +
/// epsilon); with kZero y = x rstd weight, with rstd = 1 / sqrt(mean(x^2) + epsilon). Where
/// the weight counts from one, `weight` in these formulas is 1 + weight. In place (y is x) is not
/// allowed: the backward pass reads x. Shapes: x, y rows x n (any leading dimensions count as
/// rows); weight, bias n; mean, rstd rows in compute_dtype() of x. The bias may be empty. Source:
/// Ba, Kiros, Hinton, "Layer normalization", arXiv 1607.06450; Zhang, Sennrich, "Root mean square
/// layer normalization", arXiv 1910.07467.
void row_norm_forward(Context& context, const RowNorm& norm, const ConstTensorView& x,
                      const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                      const TensorView& y, const TensorView& mean, const TensorView& rstd);

/// dx = addend + rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight and xhat = (x - mean)
/// rstd; with kZero xhat = x rstd and mean(g) is left out. The addend may be empty. In place (dx is
/// dy or addend) is allowed.
/// Shapes: x, dy, addend, dx rows x n; weight n; mean, rstd rows.
void row_norm_backward_input(Context& context, const RowNorm& norm, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& mean,
                             const ConstTensorView& rstd, const ConstTensorView& dy,
                             const ConstTensorView& addend, const TensorView& dx);

/// dweight = (or +=) sum of dy xhat, dbias = (or +=) sum of dy, rows added as column_sum() does.
/// Shapes: x, dy rows x n; mean, rstd rows; dweight, dbias n in compute_dtype() of x. An empty
/// dbias is not computed.
void row_norm_backward_weight(Context& context, const RowNorm& norm, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& rstd,
                              const ConstTensorView& dy, const TensorView& dweight,
                              const TensorView& dbias, Accumulate accumulate);

/// Both of the above, with the same bits. dx may be dy or addend.
void row_norm_backward(Context& context, const RowNorm& norm, const ConstTensorView& x,
                       const ConstTensorView& weight, const ConstTensorView& mean,
                       const ConstTensorView& rstd, const ConstTensorView& dy,
                       const ConstTensorView& addend, const TensorView& dx,
                       const TensorView& dweight, const TensorView& dbias, Accumulate accumulate);

}  // namespace strata::ops
