#include "strata/ops/layer_norm.hpp"

#include "strata/core/error.hpp"

#include "cuda/ops.hpp"
#include "norm/row_norm.hpp"
#include "observed.hpp"

namespace strata::ops {
namespace {

void check_backward_input(const ConstTensorView& x, const ConstTensorView& weight,
                          const ConstTensorView& mean, const ConstTensorView& rstd,
                          const ConstTensorView& dy, const ConstTensorView& addend,
                          const TensorView& dx) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "layer norm's weight");
  require_count(mean, compute_dtype(x.dtype()), rows, "layer norm's mean");
  require_count(rstd, compute_dtype(x.dtype()), rows, "layer norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "layer norm's dy");
  if (!addend.empty()) {
    require_like(addend, x.dtype(), x.shape(), "layer norm's addend");
  }
  require_like(dx, x.dtype(), x.shape(), "layer norm's dx");
}

void check_backward_weight(const ConstTensorView& x, const ConstTensorView& mean,
                           const ConstTensorView& rstd, const ConstTensorView& dy,
                           const TensorView& dweight) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(mean, compute_dtype(x.dtype()), rows, "layer norm's mean");
  require_count(rstd, compute_dtype(x.dtype()), rows, "layer norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "layer norm's dy");
  require_count(dweight, compute_dtype(x.dtype()), n, "layer norm's dweight");
}

}  // namespace

void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd) {
  const Observed observed(context, "layer_norm_forward", x, weight, bias, y, mean, rstd);
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "layer norm's weight");
  if (!bias.empty()) {
    require_count(bias, x.dtype(), n, "layer norm's bias");
  }
  require_like(y, x.dtype(), x.shape(), "layer norm's y");
  require(x.empty() || x.raw() != y.raw(), "layer norm in place");
  require_count(mean, compute_dtype(x.dtype()), rows, "layer norm's mean");
  require_count(rstd, compute_dtype(x.dtype()), rows, "layer norm's rstd");
  if (observed.handled_by<cuda::layer_norm_forward>(x, weight, bias, epsilon, y, mean, rstd)) {
    return;
  }
  norm_forward<Center::kMean>(context, x, weight, bias, epsilon, y, mean, rstd);
}

void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& weight, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const ConstTensorView& addend, const TensorView& dx) {
  const Observed observed(context, "layer_norm_backward_input", x, weight, mean, rstd, dy, addend,
                          dx);
  check_backward_input(x, weight, mean, rstd, dy, addend, dx);
  if (observed.handled_by<cuda::layer_norm_backward_input>(x, weight, mean, rstd, dy, addend, dx)) {
    return;
  }
  norm_backward_input<Center::kMean>(context, x, weight, mean, rstd, dy, addend, dx);
}

void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dweight,
                                const TensorView& dbias, Accumulate accumulate) {
  const Observed observed(context, "layer_norm_backward_weight", x, mean, rstd, dy, dweight, dbias);
  check_backward_weight(x, mean, rstd, dy, dweight);
  if (observed.handled_by<cuda::layer_norm_backward_weight>(x, mean, rstd, dy, dweight, dbias,
                                                            accumulate)) {
    return;
  }
  norm_backward_weight<Center::kMean>(context, x, mean, rstd, dy, dweight, accumulate);
  if (!dbias.empty()) {
    column_sum(context, dy, dbias, accumulate);
  }
}

void layer_norm_backward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& mean, const ConstTensorView& rstd,
                         const ConstTensorView& dy, const ConstTensorView& addend,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias,
                         Accumulate accumulate) {
  const Observed observed(context, "layer_norm_backward", x, weight, mean, rstd, dy, addend, dx,
                          dweight, dbias);
  check_backward_input(x, weight, mean, rstd, dy, addend, dx);
  check_backward_weight(x, mean, rstd, dy, dweight);
  if (observed.handled_by<cuda::layer_norm_backward>(x, weight, mean, rstd, dy, addend, dx, dweight,
                                                     dbias, accumulate)) {
    return;
  }
  layer_norm_backward_weight(context, x, mean, rstd, dy, dweight, dbias, accumulate);
  layer_norm_backward_input(context, x, weight, mean, rstd, dy, addend, dx);
}

}  // namespace strata::ops
