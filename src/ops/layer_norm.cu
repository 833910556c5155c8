#include "strata/ops/layer_norm.hpp"

#include "checks.hpp"
#include "cuda_column_sums.hpp"
#include "cuda_ops.hpp"
#include "cuda_rows.hpp"

namespace strata::ops::cuda {
namespace {

/// bias may be null.
template <typename T>
struct Forward {
  const T* x;
  const T* gain;
  const T* bias;
  double epsilon;
  std::int64_t columns;
  T* y;
  Compute<T>* means;
  Compute<T>* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    using C = Compute<T>;
    const T* const from = x + row * columns;
    const double count = static_cast<double>(columns);
    C part{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      part += value_of(from[i]);
    }
    const C mean = static_cast<C>(threads.sum(static_cast<double>(part)) / count);
    // A second pass: the difference of two large sums would lose the variance of a narrow row.
    part = C{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C difference = value_of(from[i]) - mean;
      part = fused(difference, difference, part);
    }
    const double variance = threads.sum(static_cast<double>(part)) / count;
    const C rstd = static_cast<C>(1.0 / sqrt(variance + epsilon));
    if (threads.lane == 0) {
      means[row] = mean;
      rstds[row] = rstd;
    }
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C scaled = (value_of(from[i]) - mean) * rstd * value_of(gain[i]);
      y[row * columns + i] = stored<T>(bias == nullptr ? scaled : scaled + value_of(bias[i]));
    }
  }
};

template <typename T>
struct BackwardInput {
  const T* x;
  const T* gain;
  const Compute<T>* means;
  const Compute<T>* rstds;
  const T* dy;
  bool adds;
  std::int64_t columns;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    using C = Compute<T>;
    const std::int64_t first = row * columns;
    const double count = static_cast<double>(columns);
    const C mean = means[row];
    const C rstd = rstds[row];
    C part{0};
    C part_xhat{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C g = value_of(dy[first + i]) * value_of(gain[i]);
      part += g;
      part_xhat = fused(g, (value_of(x[first + i]) - mean) * rstd, part_xhat);
    }
    const C mean_g = static_cast<C>(threads.sum(static_cast<double>(part)) / count);
    const C mean_g_xhat = static_cast<C>(threads.sum(static_cast<double>(part_xhat)) / count);
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C g = value_of(dy[first + i]) * value_of(gain[i]);
      const C xhat = (value_of(x[first + i]) - mean) * rstd;
      const C result = rstd * (g - mean_g - xhat * mean_g_xhat);
      dx[first + i] = stored<T>(adds ? value_of(dx[first + i]) + result : result);
    }
  }
};

/// dy xhat.
template <typename T>
struct GainTerm {
  const T* x;
  const Compute<T>* means;
  const Compute<T>* rstds;
  const T* dy;
  std::int64_t columns;

  __device__ Compute<T> operator()(std::int64_t row, std::int64_t j) const {
    const std::int64_t i = row * columns + j;
    return value_of(dy[i]) * ((value_of(x[i]) - means[row]) * rstds[row]);
  }
};

}  // namespace

void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& gain,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(context, "layer_norm_forward", shape.rows, shape.columns,
                 Forward<T>{x.device<T>(), gain.device<T>(), device_or_null<T>(bias), epsilon,
                            shape.columns, y.device<T>(), mean.device<C>(), rstd.device<C>()});
  });
}

void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& gain, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const TensorView& dx, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(context, "layer_norm_backward_input", shape.rows, shape.columns,
                 BackwardInput<T>{x.device<T>(), gain.device<T>(), mean.device<C>(),
                                  rstd.device<C>(), dy.device<T>(), accumulate == Accumulate::kAdd,
                                  shape.columns, dx.device<T>()});
  });
}

void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dgain,
                                const TensorView& dbias, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    sum_over_rows<C>(context, "layer_norm_backward_weight", shape.rows, shape.columns, accumulate,
                     dgain.device<C>(),
                     GainTerm<T>{x.device<T>(), mean.device<C>(), rstd.device<C>(), dy.device<T>(),
                                 shape.columns});
  });
  if (!dbias.empty()) {
    ops::column_sum(context, dy, dbias, accumulate);
  }
}

}  // namespace strata::ops::cuda
