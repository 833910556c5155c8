#include "strata/ops/rms_norm.hpp"

#include "cuda/ops.hpp"
#include "norm/cuda_norm.hpp"

namespace strata::ops::cuda {

void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                      double epsilon, const TensorView& y, const TensorView& rstd) {
  norm_forward<Center::kZero>(context, "rms_norm_forward", x, weight, {}, epsilon, y, {}, rstd);
}

void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const ConstTensorView& addend,
                             const TensorView& dx) {
  norm_backward_input<Center::kZero>(context, "rms_norm_backward_input", x, weight, {}, rstd, dy,
                                     addend, dx);
}

void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dweight, Accumulate accumulate) {
  norm_backward_weight<Center::kZero>(context, "rms_norm_backward_weight", x, {}, rstd, dy, dweight,
                                      {}, accumulate);
}

void rms_norm_backward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                       const ConstTensorView& rstd, const ConstTensorView& dy,
                       const ConstTensorView& addend, const TensorView& dx,
                       const TensorView& dweight, Accumulate accumulate) {
  norm_backward<Center::kZero>(context, "rms_norm_backward", x, weight, {}, rstd, dy, addend, dx,
                               dweight, {}, accumulate);
}

}  // namespace strata::ops::cuda
