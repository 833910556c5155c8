#pragma once

#include "strata/ops/matmul.hpp"

namespace strata::ops {

/// RowBits::kOfRow on the CPU: c = a b^T + bias, or c += a b^T + bias. Each element is eight
/// partial sums of every eighth term, added in pairs, fours and halves, so that it has the same
/// bits under every instruction set with a fused multiply-add. Shapes: a m x k, b n x k, c m x n;
/// bias n, or empty. Pre: a and b are float32 or bfloat16, c of the same dtype or float32.
void row_product(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                 const ConstTensorView& bias, const TensorView& c, Accumulate accumulate);

}  // namespace strata::ops
