#pragma once

#include <cstdint>

#include "strata/core/switch.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Whether weight decay is added to the gradient (Adam) or decoupled from it (AdamW).
enum class DecayKind { kInGradient, kDecoupled };

struct SgdOptions {
  double learning_rate = 0.0;
  double momentum = 0.0;
  Switch nesterov = Switch::kOff;
  double weight_decay = 0.0;
  /// Multiplies the gradient first; the factor of gradient clipping.
  double gradient_scale = 1.0;
};

struct AdamOptions {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  DecayKind decay = DecayKind::kInGradient;
  /// Number of this update, from 1.
  std::int64_t step = 1;
  double gradient_scale = 1.0;
};

struct AdagradOptions {
  double learning_rate = 0.0;
  double epsilon = 1e-10;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

/// g = scale gradient + decay w; v = momentum v + g; w -= rate v, or with Nesterov w -= rate (g +
/// momentum v). Without momentum w -= rate g and `momentum` may be empty.
/// Shapes: equal counts and dtypes, any slice of a parameter. Source: Sutskever et al., "On the
/// importance of initialization and momentum in deep learning", ICML 2013, in PyTorch's form.
void sgd_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                const TensorView& momentum, const SgdOptions& options);

/// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -= rate mhat / (sqrt(vhat) +
/// epsilon) with mhat = m / (1 - beta1^step), vhat = v / (1 - beta2^step). `rounded` receives w
/// rounded to nearest; empty for none.
/// Shapes: equal counts and dtypes; on GPUs rounded is bfloat16 and w float32. Source: Kingma, Ba,
/// "Adam", arXiv 1412.6980; Loshchilov, Hutter, "Decoupled weight decay regularization", arXiv
/// 1711.05101.
void adam_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                 const TensorView& m, const TensorView& v, const AdamOptions& options,
                 const TensorView& rounded = {});

/// s += g^2; w -= rate g / (sqrt(s) + epsilon).
/// Shapes: equal counts and dtypes. Source: Duchi, Hazan, Singer, "Adaptive subgradient methods",
/// JMLR 2011.
void adagrad_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                    const TensorView& sum, const AdagradOptions& options);

/// w = keep w + term: a running average; the caller has scaled the new term.
/// Shapes: equal counts and dtypes.
void average_update(Context& context, const TensorView& weight, const ConstTensorView& term,
                    double keep);

}  // namespace strata::ops
