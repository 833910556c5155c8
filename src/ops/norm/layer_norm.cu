#include "strata/ops/layer_norm.hpp"

#include "cuda/ops.hpp"
#include "norm/cuda_norm.hpp"

namespace strata::ops::cuda {

void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd) {
  norm_forward<Center::kMean>(context, "layer_norm_forward", x, weight, bias, epsilon, y, mean,
                              rstd);
}

void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& weight, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const ConstTensorView& addend, const TensorView& dx) {
  norm_backward_input<Center::kMean>(context, "layer_norm_backward_input", x, weight, mean, rstd,
                                     dy, addend, dx);
}

void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dweight,
                                const TensorView& dbias, Accumulate accumulate) {
  norm_backward_weight<Center::kMean>(context, "layer_norm_backward_weight", x, mean, rstd, dy,
                                      dweight, dbias, accumulate);
}

void layer_norm_backward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& mean, const ConstTensorView& rstd,
                         const ConstTensorView& dy, const ConstTensorView& addend,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias,
                         Accumulate accumulate) {
  norm_backward<Center::kMean>(context, "layer_norm_backward", x, weight, mean, rstd, dy, addend,
                               dx, dweight, dbias, accumulate);
}

}  // namespace strata::ops::cuda
