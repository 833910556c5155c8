#pragma once

#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Elementwise functions between layers.
enum class Activation { kNone, kRelu, kGelu, kGeluErf, kTanh, kSigmoid };

constexpr auto enum_names(Activation) {
  return names_in_order("none", "relu", "gelu", "gelu_erf", "tanh", "sigmoid");
}

/// y = f(x), element by element. In place (y is x) is allowed.
/// gelu is 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); gelu_erf is x Phi(x) with the normal
/// distribution's Phi(x) = 0.5 (1 + erf(x / sqrt(2))), which gelu approximates.
/// Shapes: x, y equal. Source: Hendrycks, Gimpel, "Gaussian error linear units", arXiv 1606.08415.
void activation_forward(Context& context, Activation activation, const ConstTensorView& x,
                        const TensorView& y);

/// Whether an activation's gradient reads x; else it reads y.
constexpr bool gradient_reads_x(Activation activation) {
  return activation == Activation::kGelu || activation == Activation::kGeluErf;
}

/// dx = f'(x) dy, element by element. In place (dx is dy) is allowed. Of x and y the tensor that
/// the gradient does not read may be empty.
/// Shapes: x, y, dy, dx equal.
void activation_backward(Context& context, Activation activation, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& dy, const TensorView& dx);

/// The function f of a gated linear unit: silu(x) = x / (1 + exp(-x)), or gelu as Activation's.
enum class Gate { kSilu, kGelu };

constexpr auto enum_names(Gate) {
  return names_in_order("swiglu", "geglu");
}

/// y = f(gate) up.
/// Shapes: gate, up, y equal. Source: Shazeer, "GLU variants improve transformer", arXiv
/// 2002.05202.
void gated_forward(Context& context, Gate function, const ConstTensorView& gate,
                   const ConstTensorView& up, const TensorView& y);

/// dgate = dy up f'(gate), dup = dy f(gate). In place (dup or dgate is dy) is allowed.
void gated_backward(Context& context, Gate function, const ConstTensorView& gate,
                    const ConstTensorView& up, const ConstTensorView& dy, const TensorView& dgate,
                    const TensorView& dup);

/// y = exp(x) / sum(exp(x)) over the last dimension. In place (y is x) is allowed.
/// Shapes: x, y equal.
void softmax_forward(Context& context, const ConstTensorView& x, const TensorView& y);

/// dx = y (dy - sum(dy y)), the sum over the last dimension. In place (dx is dy) is allowed.
/// Shapes: y, dy, dx equal.
void softmax_backward(Context& context, const ConstTensorView& y, const ConstTensorView& dy,
                      const TensorView& dx);

}  // namespace strata::ops
