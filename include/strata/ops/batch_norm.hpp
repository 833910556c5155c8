#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

class Context;

/// The mean and (biased) variance of each column. Sums fixed blocks of rows, then the block sums in
/// order: bits depend only on the shape.
/// Shapes: x rows x n (any leading dimensions count as rows); mean, variance n in compute_dtype()
/// of x.
void column_statistics(Context& context, const ConstTensorView& x, const TensorView& mean,
                       const TensorView& variance);

/// Combines the statistics of parts with equal numbers of rows into those of all rows; adds parts
/// in the order of `steps`. Shapes: parts any number x 2 x n, means before variances; mean,
/// variance n; all float32 or float64. Source: Chan, Golub, LeVeque, "Algorithms for computing the
/// sample variance", 1983.
void combine_statistics(Context& context, std::span<const ReductionStep> steps,
                        const ConstTensorView& parts, const TensorView& mean,
                        const TensorView& variance);

/// mean = the mean over the first dimension of `parts`, added in the order of `steps`.
/// Shapes: parts any number x anything, mean the same without the first dimension; float32 or
/// float64.
void mean_of_parts(Context& context, std::span<const ReductionStep> steps,
                   const ConstTensorView& parts, const TensorView& mean);

/// y = activation((x - mean) / sqrt(variance + epsilon) weight + bias) column by column. In place
/// (y is x) is not allowed in training: the backward pass reads x. Shapes: x, y rows x n; mean,
/// variance n in compute_dtype() of x, or in x's dtype; weight, bias n in x's dtype. Pre: the
/// activation is kNone or kRelu. Source: Ioffe, Szegedy, "Batch normalization", arXiv 1502.03167.
void batch_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& mean,
                        const ConstTensorView& variance, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, Activation activation,
                        const TensorView& y);

/// The sums over rows that both gradients need: dbias[j] = sum of g, dweight[j] = sum of g xhat,
/// with xhat = (x - mean) / sqrt(variance + epsilon), and g = dy; with a non-empty `y`, g = dy
/// where y > 0, else 0 (the gradient of a fused ReLU). Same order of sums as column_statistics().
/// Shapes: x, dy, y rows x n; mean, variance, dweight, dbias n in compute_dtype() of x.
void batch_norm_backward_sums(Context& context, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& variance,
                              double epsilon, const ConstTensorView& y, const ConstTensorView& dy,
                              const TensorView& dweight, const TensorView& dbias);

/// dx = weight / sqrt(variance + epsilon) (g - (dbias + xhat dweight) / rows), with g, dweight and
/// dbias of batch_norm_backward_sums(). In place (dx is dy) is allowed.
void batch_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& mean, const ConstTensorView& variance,
                               const ConstTensorView& weight, double epsilon,
                               const ConstTensorView& y, const ConstTensorView& dy,
                               const ConstTensorView& dweight, const ConstTensorView& dbias,
                               const TensorView& dx);

}  // namespace strata::ops
