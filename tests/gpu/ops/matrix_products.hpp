#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops::test {

/// What tensor cores make of matrices, by the functions that attention's kernels are made of:
/// dots = a b^T; weighted = (a b^T, rounded to bfloat16) b. Shapes: a, b, weighted 64 x n in
/// bfloat16, dots 64 x 64 in float32. Pre: n is 64, 128 or 256; the context is a GPU's.
void matrix_products(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                     const TensorView& dots, const TensorView& weighted);

}  // namespace strata::ops::test
