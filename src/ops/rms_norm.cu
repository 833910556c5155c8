#include "strata/ops/rms_norm.hpp"

#include "checks.hpp"
#include "cuda_column_sums.hpp"
#include "cuda_ops.hpp"
#include "cuda_rows.hpp"

namespace strata::ops::cuda {
namespace {

template <typename T>
struct Forward {
  const T* x;
  const T* gain;
  double epsilon;
  std::int64_t columns;
  T* y;
  Compute<T>* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    using C = Compute<T>;
    const T* const from = x + row * columns;
    C part{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C value = value_of(from[i]);
      part = fused(value, value, part);
    }
    const double squares = threads.sum(static_cast<double>(part));
    const C rstd = static_cast<C>(1.0 / sqrt(squares / static_cast<double>(columns) + epsilon));
    if (threads.lane == 0) {
      rstds[row] = rstd;
    }
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      y[row * columns + i] = stored<T>(value_of(from[i]) * rstd * value_of(gain[i]));
    }
  }
};

template <typename T>
struct BackwardInput {
  const T* x;
  const T* gain;
  const Compute<T>* rstds;
  const T* dy;
  bool adds;
  std::int64_t columns;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    using C = Compute<T>;
    const std::int64_t first = row * columns;
    const C rstd = rstds[row];
    C part{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      part =
          fused(value_of(dy[first + i]) * value_of(gain[i]), value_of(x[first + i]) * rstd, part);
    }
    const C mean_g_xhat =
        static_cast<C>(threads.sum(static_cast<double>(part)) / static_cast<double>(columns));
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C g = value_of(dy[first + i]) * value_of(gain[i]);
      const C result = rstd * (g - value_of(x[first + i]) * rstd * mean_g_xhat);
      dx[first + i] = stored<T>(adds ? value_of(dx[first + i]) + result : result);
    }
  }
};

/// dy xhat.
template <typename T>
struct GainTerm {
  const T* x;
  const Compute<T>* rstds;
  const T* dy;
  std::int64_t columns;

  __device__ Compute<T> operator()(std::int64_t row, std::int64_t j) const {
    const std::int64_t i = row * columns + j;
    return value_of(dy[i]) * (value_of(x[i]) * rstds[row]);
  }
};

}  // namespace

void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& gain,
                      double epsilon, const TensorView& y, const TensorView& rstd) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    for_each_row(context, "rms_norm_forward", shape.rows, shape.columns,
                 Forward<T>{x.device<T>(), gain.device<T>(), epsilon, shape.columns, y.device<T>(),
                            rstd.device<Compute<T>>()});
  });
}

void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& gain, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const TensorView& dx,
                             Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    for_each_row(
        context, "rms_norm_backward_input", shape.rows, shape.columns,
        BackwardInput<T>{x.device<T>(), gain.device<T>(), rstd.device<Compute<T>>(), dy.device<T>(),
                         accumulate == Accumulate::kAdd, shape.columns, dx.device<T>()});
  });
}

void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dgain, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    sum_over_rows<C>(context, "rms_norm_backward_weight", shape.rows, shape.columns, accumulate,
                     dgain.device<C>(),
                     GainTerm<T>{x.device<T>(), rstd.device<C>(), dy.device<T>(), shape.columns});
  });
}

}  // namespace strata::ops::cuda
