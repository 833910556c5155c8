#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/activation.hpp"

namespace strata::ops {

class Context;

/// Whether a stored matrix is read as its transpose.
enum class Transpose { kNo, kYes };

/// Whether a result replaces what a tensor holds or is added to it.
enum class Accumulate { kOverwrite, kAdd };

struct MatmulOptions {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kOverwrite;
  /// Added to every row of the product; empty: none. Shape: n.
  ConstTensorView bias = {};
  /// Applied last. Pre: kNone, kRelu or kGelu; kNone where the result is added, or something to it.
  Activation activation = Activation::kNone;
  /// Added to the product; empty: none. May be c. Pre: kOverwrite. Like c.
  ConstTensorView addend = {};
  /// Receives what kGelu is applied to. Pre: given with kGelu and only then; not c. Like c.
  TensorView pre_activation = {};
  /// What the product is multiplied by the slope of gelu at; empty: by none. Pre: neither bias nor
  /// activation nor addend, kOverwrite; not c. Like c.
  ConstTensorView gelu_gradient_of = {};
};

/// c = activation(op(a) op(b) + bias) + addend, or c += op(a) op(b) + bias, or
/// c = op(a) op(b) gelu'(gelu_gradient_of).
/// Shapes: op(a) m x k, op(b) k x n, c m x n; a and b of one dtype, float32, float64 or bfloat16; c
/// of the same, or float32 where they are bfloat16; bias of a's dtype.
/// The bits of c depend on the shapes and options alone. On the CPU they are those of one operation
/// after the other: addend copied to c for the product to add to, or the product, rounded, and then
/// activation_forward() or activation_backward(). On a GPU c may be rounded once, and be another
/// than activation_forward() makes of pre_activation.
void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options = {});

/// sum[j] = sum over i of x[i, j], rows added in an order that follows from their number alone; a
/// bias's gradient.
/// Shapes: x rows x n (any leading dimensions count as rows), sum n in compute_dtype() of x.
void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate);

}  // namespace strata::ops
