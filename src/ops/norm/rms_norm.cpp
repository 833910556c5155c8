#include "strata/ops/rms_norm.hpp"

#include "cuda/ops.hpp"
#include "norm/row_norm.hpp"
#include "observed.hpp"

namespace strata::ops {
namespace {

void check_backward_input(const ConstTensorView& x, const ConstTensorView& weight,
                          const ConstTensorView& rstd, const ConstTensorView& dy,
                          const ConstTensorView& addend, const TensorView& dx) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "rms norm's weight");
  require_count(rstd, compute_dtype(x.dtype()), rows, "rms norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "rms norm's dy");
  if (!addend.empty()) {
    require_like(addend, x.dtype(), x.shape(), "rms norm's addend");
  }
  require_like(dx, x.dtype(), x.shape(), "rms norm's dx");
}

void check_backward_weight(const ConstTensorView& x, const ConstTensorView& rstd,
                           const ConstTensorView& dy, const TensorView& dweight) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(rstd, compute_dtype(x.dtype()), rows, "rms norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "rms norm's dy");
  require_count(dweight, compute_dtype(x.dtype()), n, "rms norm's dweight");
}

}  // namespace

void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                      double epsilon, const TensorView& y, const TensorView& rstd) {
  const Observed observed(context, "rms_norm_forward", x, weight, y, rstd);
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "rms norm's weight");
  require_like(y, x.dtype(), x.shape(), "rms norm's y");
  require_count(rstd, compute_dtype(x.dtype()), rows, "rms norm's rstd");
  if (observed.handled_by<cuda::rms_norm_forward>(x, weight, epsilon, y, rstd)) {
    return;
  }
  norm_forward<Center::kZero>(context, x, weight, {}, epsilon, y, {}, rstd);
}

void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const ConstTensorView& addend,
                             const TensorView& dx) {
  const Observed observed(context, "rms_norm_backward_input", x, weight, rstd, dy, addend, dx);
  check_backward_input(x, weight, rstd, dy, addend, dx);
  if (observed.handled_by<cuda::rms_norm_backward_input>(x, weight, rstd, dy, addend, dx)) {
    return;
  }
  norm_backward_input<Center::kZero>(context, x, weight, {}, rstd, dy, addend, dx);
}

void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dweight, Accumulate accumulate) {
  const Observed observed(context, "rms_norm_backward_weight", x, rstd, dy, dweight);
  check_backward_weight(x, rstd, dy, dweight);
  if (observed.handled_by<cuda::rms_norm_backward_weight>(x, rstd, dy, dweight, accumulate)) {
    return;
  }
  norm_backward_weight<Center::kZero>(context, x, {}, rstd, dy, dweight, accumulate);
}

void rms_norm_backward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                       const ConstTensorView& rstd, const ConstTensorView& dy,
                       const ConstTensorView& addend, const TensorView& dx,
                       const TensorView& dweight, Accumulate accumulate) {
  const Observed observed(context, "rms_norm_backward", x, weight, rstd, dy, addend, dx, dweight);
  check_backward_input(x, weight, rstd, dy, addend, dx);
  check_backward_weight(x, rstd, dy, dweight);
  if (observed.handled_by<cuda::rms_norm_backward>(x, weight, rstd, dy, addend, dx, dweight,
                                                   accumulate)) {
    return;
  }
  rms_norm_backward_weight(context, x, rstd, dy, dweight, accumulate);
  rms_norm_backward_input(context, x, weight, rstd, dy, addend, dx);
}

}  // namespace strata::ops
