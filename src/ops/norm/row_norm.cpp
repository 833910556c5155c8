#include "strata/ops/row_norm.hpp"

#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "norm/norm_rows.hpp"
#include "observed.hpp"
#include "simd/column_sums.hpp"

namespace strata::ops {
namespace {

/// Calls function<norm, the type of `dtype`>().
template <typename Function>
void with_norm(const RowNorm& norm, DType dtype, const Function& function) {
  with_stored(dtype, [&]<typename T>(T) {
    if (norm.center == Center::kMean) {
      function.template operator()<RowNorm{Center::kMean}, T>();
    } else if (norm.offset == WeightOffset::kZero) {
      function.template operator()<RowNorm{Center::kZero}, T>();
    } else {
      function.template operator()<RowNorm{Center::kZero, WeightOffset::kOne}, T>();
    }
  });
}

void require_statistics(const RowNorm& norm, const ConstTensorView& x, const ConstTensorView& mean,
                        const ConstTensorView& rstd) {
  const std::int64_t rows = rows_of(x.shape()).rows;
  if (norm.center == Center::kMean) {
    require(norm.offset == WeightOffset::kZero, "a layer norm whose weight counts from one");
    require_count(mean, compute_dtype(x.dtype()), rows, "a norm's mean");
  }
  require_count(rstd, compute_dtype(x.dtype()), rows, "a norm's rstd");
}

void check_backward_input(const RowNorm& norm, const ConstTensorView& x,
                          const ConstTensorView& weight, const ConstTensorView& mean,
                          const ConstTensorView& rstd, const ConstTensorView& dy,
                          const ConstTensorView& addend, const TensorView& dx) {
  require_count(weight, x.dtype(), rows_of(x.shape()).columns, "a norm's weight");
  require_statistics(norm, x, mean, rstd);
  require_like(dy, x.dtype(), x.shape(), "a norm's dy");
  if (!addend.empty()) {
    require_like(addend, x.dtype(), x.shape(), "a norm's addend");
  }
  require_like(dx, x.dtype(), x.shape(), "a norm's dx");
}

void check_backward_weight(const RowNorm& norm, const ConstTensorView& x,
                           const ConstTensorView& mean, const ConstTensorView& rstd,
                           const ConstTensorView& dy, const TensorView& dweight) {
  require_statistics(norm, x, mean, rstd);
  require_like(dy, x.dtype(), x.shape(), "a norm's dy");
  require_count(dweight, compute_dtype(x.dtype()), rows_of(x.shape()).columns, "a norm's dweight");
}

}  // namespace

void row_norm_forward(Context& context, const RowNorm& norm, const ConstTensorView& x,
                      const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                      const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  const Observed observed(context,
                          norm.center == Center::kMean ? "layer_norm_forward" : "rms_norm_forward",
                          x, weight, bias, y, mean, rstd);
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "a norm's weight");
  if (!bias.empty()) {
    require_count(bias, x.dtype(), n, "a norm's bias");
  }
  require_like(y, x.dtype(), x.shape(), "a norm's y");
  require(x.empty() || x.raw() != y.raw(), "a norm in place");
  require_statistics(norm, x, mean, rstd);
  if (observed.handled_by<cuda::row_norm_forward>(norm, x, weight, bias, epsilon, y, mean, rstd)) {
    return;
  }
  with_norm(norm, x.dtype(), [&, rows = rows, n = n]<RowNorm kNorm, typename T>() {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    const T* weights = weight.host<T>().data();
    const T* biases = kNorm.center == Center::kMean ? host_or_null<T>(bias) : nullptr;
    T* to = y.host<T>().data();
    C* means = host_or_null<C>(mean);
    C* rstds = rstd.host<C>().data();
    parallel_for_rows(context, rows, n, [=](std::int64_t row) {
      norm_forward_row<kNorm>(from + row * n, weights, biases, epsilon, n, to + row * n,
                              kNorm.center == Center::kMean ? means + row : nullptr, rstds + row);
    });
  });
}

void row_norm_backward_input(Context& context, const RowNorm& norm, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& mean,
                             const ConstTensorView& rstd, const ConstTensorView& dy,
                             const ConstTensorView& addend, const TensorView& dx) {
  const Observed observed(
      context,
      norm.center == Center::kMean ? "layer_norm_backward_input" : "rms_norm_backward_input", x,
      weight, mean, rstd, dy, addend, dx);
  check_backward_input(norm, x, weight, mean, rstd, dy, addend, dx);
  if (observed.handled_by<cuda::row_norm_backward_input>(norm, x, weight, mean, rstd, dy, addend,
                                                         dx)) {
    return;
  }
  const auto [rows, n] = rows_of(x.shape());
  with_norm(norm, x.dtype(), [&, rows = rows, n = n]<RowNorm kNorm, typename T>() {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    const T* weights = weight.host<T>().data();
    const C* means = host_or_null<C>(mean);
    const C* rstds = rstd.host<C>().data();
    const T* incoming = dy.host<T>().data();
    const T* added = host_or_null<T>(addend);
    T* outgoing = dx.host<T>().data();
    parallel_for_rows(context, rows, n, [=](std::int64_t row) {
      const std::int64_t first = row * n;
      const C mean_of_row = kNorm.center == Center::kMean ? means[row] : C{0};
      if (added == nullptr) {
        norm_backward_row<kNorm, Accumulate::kOverwrite>(from + first, weights, mean_of_row,
                                                         rstds[row], incoming + first, added, n,
                                                         outgoing + first);
      } else {
        norm_backward_row<kNorm, Accumulate::kAdd>(from + first, weights, mean_of_row, rstds[row],
                                                   incoming + first, added + first, n,
                                                   outgoing + first);
      }
    });
  });
}

void row_norm_backward_weight(Context& context, const RowNorm& norm, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& rstd,
                              const ConstTensorView& dy, const TensorView& dweight,
                              const TensorView& dbias, Accumulate accumulate) {
  const Observed observed(
      context,
      norm.center == Center::kMean ? "layer_norm_backward_weight" : "rms_norm_backward_weight", x,
      mean, rstd, dy, dweight, dbias);
  check_backward_weight(norm, x, mean, rstd, dy, dweight);
  if (observed.handled_by<cuda::row_norm_backward_weight>(norm, x, mean, rstd, dy, dweight, dbias,
                                                          accumulate)) {
    return;
  }
  const auto [rows, n] = rows_of(x.shape());
  with_norm(norm, x.dtype(), [&, rows = rows, n = n]<RowNorm kNorm, typename T>() {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    const C* means = host_or_null<C>(mean);
    const C* rstds = rstd.host<C>().data();
    const T* incoming = dy.host<T>().data();
    sum_over_rows<C>(context, rows, n, accumulate, dweight.host<C>().data(),
                     [=](std::int64_t row, std::int64_t j) {
                       const C mean_of_row = kNorm.center == Center::kMean ? means[row] : C{0};
                       const auto xhat =
                           normalised<kNorm.center>(from + row * n, mean_of_row, rstds[row]);
                       return static_cast<C>(incoming[row * n + j]) * xhat(j);
                     });
  });
  if (!dbias.empty()) {
    column_sum(context, dy, dbias, accumulate);
  }
}

void row_norm_backward(Context& context, const RowNorm& norm, const ConstTensorView& x,
                       const ConstTensorView& weight, const ConstTensorView& mean,
                       const ConstTensorView& rstd, const ConstTensorView& dy,
                       const ConstTensorView& addend, const TensorView& dx,
                       const TensorView& dweight, const TensorView& dbias, Accumulate accumulate) {
  const Observed observed(
      context, norm.center == Center::kMean ? "layer_norm_backward" : "rms_norm_backward", x,
      weight, mean, rstd, dy, addend, dx, dweight, dbias);
  check_backward_input(norm, x, weight, mean, rstd, dy, addend, dx);
  check_backward_weight(norm, x, mean, rstd, dy, dweight);
  if (observed.handled_by<cuda::row_norm_backward>(norm, x, weight, mean, rstd, dy, addend, dx,
                                                   dweight, dbias, accumulate)) {
    return;
  }
  row_norm_backward_weight(context, norm, x, mean, rstd, dy, dweight, dbias, accumulate);
  row_norm_backward_input(context, norm, x, weight, mean, rstd, dy, addend, dx);
}

}  // namespace strata::ops
