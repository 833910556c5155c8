#include "strata/ops/rms_norm.hpp"

#include <cmath>

#include "strata/core/dtype.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "simd/column_sums.hpp"
#include "simd/rounded.hpp"
#include "simd/simd_reduction.hpp"

namespace strata::ops {
namespace {

template <typename T>
void forward_row(const T* x, const T* weight, double epsilon, std::int64_t n, T* y,
                 Compute<T>* rstd) {
  using C = Compute<T>;
  const double squares = simd_sum<C>(n, [=](std::int64_t i) {
    const C value = static_cast<C>(x[i]);
    return value * value;
  });
  const C r = static_cast<C>(1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon));
  *rstd = r;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = rounded<T>(static_cast<C>(x[i]) * r * static_cast<C>(weight[i]));
  }
}

/// `addend` is read with kAdd alone.
template <Accumulate kAccumulate, typename T>
void backward_row(const T* x, const T* weight, Compute<T> rstd, const T* dy, const T* addend,
                  std::int64_t n, T* dx) {
  using C = Compute<T>;
  const auto g = [=](std::int64_t i) { return static_cast<C>(dy[i]) * static_cast<C>(weight[i]); };
  const auto xhat = [=](std::int64_t i) { return static_cast<C>(x[i]) * rstd; };
  const C mean_g_xhat = static_cast<C>(
      simd_sum<C>(n, [=](std::int64_t i) { return g(i) * xhat(i); }) / static_cast<double>(n));
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C result = rstd * (g(i) - xhat(i) * mean_g_xhat);
    if constexpr (kAccumulate == Accumulate::kAdd) {
      dx[i] = rounded<T>(static_cast<C>(addend[i]) + result);
    } else {
      dx[i] = rounded<T>(result);
    }
  }
}

template <Accumulate kAccumulate, typename T>
void backward_rows(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                   const ConstTensorView& rstd, const ConstTensorView& dy,
                   const ConstTensorView& addend, const TensorView& dx) {
  constexpr bool kAdds = kAccumulate == Accumulate::kAdd;
  const auto [rows, n] = rows_of(x.shape());
  const T* from = x.host<T>().data();
  const T* g = weight.host<T>().data();
  const Compute<T>* rstds = rstd.host<Compute<T>>().data();
  const T* incoming = dy.host<T>().data();
  const T* added = kAdds ? addend.host<T>().data() : nullptr;
  T* outgoing = dx.host<T>().data();
  parallel_for(context, rows, row_grain(n), [=, n = n](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      backward_row<kAccumulate>(from + row * n, g, rstds[row], incoming + row * n,
                                kAdds ? added + row * n : nullptr, n, outgoing + row * n);
    }
  });
}

}  // namespace

void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                      double epsilon, const TensorView& y, const TensorView& rstd) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "rms norm's weight");
  require_like(y, x.dtype(), x.shape(), "rms norm's y");
  require_count(rstd, compute_dtype(x.dtype()), rows, "rms norm's rstd");
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      return cuda::rms_norm_forward(context, x, weight, epsilon, y, rstd);
    }
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* from = x.host<T>().data();
    const T* g = weight.host<T>().data();
    T* to = y.host<T>().data();
    Compute<T>* rstds = rstd.host<Compute<T>>().data();
    parallel_for(context, rows, row_grain(n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        forward_row(from + row * n, g, epsilon, n, to + row * n, rstds + row);
      }
    });
  });
}

void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const ConstTensorView& addend,
                             const TensorView& dx) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "rms norm's weight");
  require_count(rstd, compute_dtype(x.dtype()), rows, "rms norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "rms norm's dy");
  if (!addend.empty()) {
    require_like(addend, x.dtype(), x.shape(), "rms norm's addend");
  }
  require_like(dx, x.dtype(), x.shape(), "rms norm's dx");
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      return cuda::rms_norm_backward_input(context, x, weight, rstd, dy, addend, dx);
    }
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    const auto run = addend.empty() ? backward_rows<Accumulate::kOverwrite, T>
                                    : backward_rows<Accumulate::kAdd, T>;
    run(context, x, weight, rstd, dy, addend, dx);
  });
}

void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dweight, Accumulate accumulate) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(rstd, compute_dtype(x.dtype()), rows, "rms norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "rms norm's dy");
  require_count(dweight, compute_dtype(x.dtype()), n, "rms norm's dweight");
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      return cuda::rms_norm_backward_weight(context, x, rstd, dy, dweight, accumulate);
    }
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    const C* rstds = rstd.host<C>().data();
    const T* incoming = dy.host<T>().data();
    sum_over_rows<C>(context, rows, n, accumulate, dweight.host<C>().data(),
                     [=](std::int64_t row, std::int64_t j) {
                       const std::int64_t i = row * n + j;
                       return static_cast<C>(incoming[i]) * (static_cast<C>(from[i]) * rstds[row]);
                     });
  });
}

}  // namespace strata::ops
