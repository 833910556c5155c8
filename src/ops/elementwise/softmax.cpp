#include <type_traits>

#include "strata/core/dtype.hpp"
#include "strata/ops/activation.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/math.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

template <typename T>
void softmax_row(const T* x, std::int64_t n, T* y) {
  using C = Compute<T>;
  const C largest = simd_max<C>(n, [=](std::int64_t i) { return static_cast<C>(x[i]); });
  const auto power = [=](std::int64_t i) { return fast_exp(static_cast<C>(x[i]) - largest); };
  if constexpr (std::is_same_v<T, C>) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = power(i);
    }
    const C inverse = static_cast<C>(1.0 / simd_sum<C>(n, [=](std::int64_t i) { return y[i]; }));
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] *= inverse;
    }
  } else {
    // y cannot hold unrounded exponentials, so each is computed twice.
    const C inverse = static_cast<C>(1.0 / simd_sum<C>(n, power));
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = to_storage<T>(power(i) * inverse);
    }
  }
}

template <typename T>
void softmax_backward_row(const T* y, const T* dy, std::int64_t n, T* dx) {
  using C = Compute<T>;
  const C dot = static_cast<C>(
      simd_sum<C>(n, [=](std::int64_t i) { return static_cast<C>(dy[i]) * static_cast<C>(y[i]); }));
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dx[i] = to_storage<T>(static_cast<C>(y[i]) * (static_cast<C>(dy[i]) - dot));
  }
}

}  // namespace

void softmax_forward(Context& context, const ConstTensorView& x, const TensorView& y) {
  const Observed observed(context, "softmax_forward", x, y);
  require_like(y, x.dtype(), x.shape(), "softmax's y");
  if (observed.handled_by<cuda::softmax_forward>(x, y)) {
    return;
  }
  const auto [rows, n] = rows_of(x.shape());
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* from = x.host<T>().data();
    T* to = y.host<T>().data();
    parallel_for_rows(context, rows, n,
                      [=](std::int64_t row) { softmax_row(from + row * n, n, to + row * n); });
  });
}

void softmax_backward(Context& context, const ConstTensorView& y, const ConstTensorView& dy,
                      const TensorView& dx) {
  const Observed observed(context, "softmax_backward", y, dy, dx);
  require_like(dy, y.dtype(), y.shape(), "softmax's dy");
  require_like(dx, y.dtype(), y.shape(), "softmax's dx");
  if (observed.handled_by<cuda::softmax_backward>(y, dy, dx)) {
    return;
  }
  const auto [rows, n] = rows_of(y.shape());
  with_stored(y.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* out = y.host<T>().data();
    const T* incoming = dy.host<T>().data();
    T* outgoing = dx.host<T>().data();
    parallel_for_rows(context, rows, n, [=](std::int64_t row) {
      softmax_backward_row(out + row * n, incoming + row * n, n, outgoing + row * n);
    });
  });
}

}  // namespace strata::ops
