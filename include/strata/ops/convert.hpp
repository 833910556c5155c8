#pragma once

#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// y = x in y's dtype, rounded to nearest, ties to even.
/// Shapes: equal counts; each float32, float64 or bfloat16.
void convert(Context& context, const ConstTensorView& x, const TensorView& y);

}  // namespace strata::ops
