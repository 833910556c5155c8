#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// Sets every element to 0. Any dtype.
void fill_zero(Context& context, const TensorView& x);

/// y = x. Shapes: equal counts; equal dtype, any. x and y are the same memory or do not overlap.
void copy(Context& context, const ConstTensorView& x, const TensorView& y);

/// y += x. Shapes: equal counts.
void add(Context& context, const ConstTensorView& x, const TensorView& y);

/// y = (or +=) factor x, in compute_dtype() and rounded once. y may be x. Shapes: equal counts and
/// dtypes.
void scaled(Context& context, double factor, const ConstTensorView& x, const TensorView& y,
            Accumulate accumulate);

/// y = x in y's dtype, rounded to nearest, ties to even.
/// Shapes: equal counts; each float32, float64 or bfloat16.
void convert(Context& context, const ConstTensorView& x, const TensorView& y);

/// y = sum + bias + residual, added in this order in compute_dtype() and rounded once; bias and
/// residual may be empty. In place (y is sum) is allowed where the dtypes are equal. Shapes: sum
/// rows x n, in y's dtype or its compute_dtype(); bias n; residual, y rows x n.
void add_bias_residual(Context& context, const ConstTensorView& sum, const ConstTensorView& bias,
                       const ConstTensorView& residual, const TensorView& y);

}  // namespace strata::ops
