#include "strata/ops/rms_norm.hpp"

#include "cuda/ops.hpp"
#include "norm/cuda_norm.hpp"

namespace strata::ops::cuda {

void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& gain,
                      double epsilon, const TensorView& y, const TensorView& rstd) {
  norm_forward<Center::kZero>(context, "rms_norm_forward", x, gain, {}, epsilon, y, {}, rstd);
}

void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& gain, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const ConstTensorView& addend,
                             const TensorView& dx) {
  norm_backward_input<Center::kZero>(context, "rms_norm_backward_input", x, gain, {}, rstd, dy,
                                     addend, dx);
}

void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dgain, Accumulate accumulate) {
  norm_backward_gain<Center::kZero>(context, "rms_norm_backward_weight", x, {}, rstd, dy, dgain,
                                    accumulate);
}

}  // namespace strata::ops::cuda
