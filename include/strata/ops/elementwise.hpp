#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

/// Sets every element to 0. Any dtype.
void fill_zero(Context& context, const TensorView& x);

/// y = x. Shapes: equal counts; equal dtype, any. The two are the same memory or do not overlap.
void copy(Context& context, const ConstTensorView& x, const TensorView& y);

/// x *= factor, in the tensor's dtype.
void scale(Context& context, double factor, const TensorView& x);

/// y += x. Shapes: equal counts.
void add(Context& context, const ConstTensorView& x, const TensorView& y);

}  // namespace strata::ops
