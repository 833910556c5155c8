#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda_column_sums.hpp"
#include "cuda_rows.hpp"

// Layer norm and RMS norm are one frame: a row is scaled to a deviation of one, about its mean or
// about zero. Included by .cu files alone.
namespace strata::ops::cuda {

/// What a row's elements are measured from.
enum class Center { kMean, kZero };

/// xhat, a row's elements as the norm sees them.
template <typename T>
struct NormalisedRow {
  const T* x;
  Compute<T> mean;
  Compute<T> rstd;

  __device__ Compute<T> operator()(std::int64_t i) const { return (value_of(x[i]) - mean) * rstd; }
};

/// The rows; about zero, `means` is null.
template <typename T, Center kCenter>
struct Normalised {
  using C = Compute<T>;

  const T* x;
  const C* means;
  const C* rstds;
  std::int64_t columns;

  __device__ NormalisedRow<T> operator[](std::int64_t row) const {
    return {x + row * columns, kCenter == Center::kMean ? means[row] : C{0}, rstds[row]};
  }
};

/// y = xhat gain + bias. `bias` may be null; about zero, so are bias and `means`.
template <typename T, Center kCenter>
struct NormForward {
  using C = Compute<T>;

  const T* x;
  const T* gain;
  const T* bias;
  double epsilon;
  std::int64_t columns;
  T* y;
  C* means;
  C* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    const T* const from = x + row * columns;
    const double count = static_cast<double>(columns);
    C mean{0};
    if constexpr (kCenter == Center::kMean) {
      // A pass of its own: the difference of two large sums would lose the variance of a narrow
      // row.
      C part{0};
      for (std::int64_t i = threads.lane; i < columns; i += kSize) {
        part += value_of(from[i]);
      }
      mean = static_cast<C>(threads.sum(static_cast<double>(part)) / count);
    }
    C part{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C difference = value_of(from[i]) - mean;
      part = fused(difference, difference, part);
    }
    const double variance = threads.sum(static_cast<double>(part)) / count;
    const C rstd = static_cast<C>(1.0 / sqrt(variance + epsilon));
    if (threads.lane == 0) {
      rstds[row] = rstd;
      if constexpr (kCenter == Center::kMean) {
        means[row] = mean;
      }
    }
    const NormalisedRow<T> xhat{from, mean, rstd};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C scaled = xhat(i) * value_of(gain[i]);
      y[row * columns + i] = stored<T>(bias == nullptr ? scaled : scaled + value_of(bias[i]));
    }
  }
};

/// dx = (or +=) rstd (g - mean(g) - xhat mean(g xhat)), where g = dy gain; mean(g) is left out
/// about zero.
template <typename T, Center kCenter>
struct NormBackwardInput {
  using C = Compute<T>;

  Normalised<T, kCenter> rows;
  const T* gain;
  const T* dy;
  bool adds;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    const std::int64_t columns = rows.columns;
    const std::int64_t first = row * columns;
    const double count = static_cast<double>(columns);
    const NormalisedRow<T> xhat = rows[row];
    const auto g = [&](std::int64_t i) { return value_of(dy[first + i]) * value_of(gain[i]); };
    C part{0};
    C part_xhat{0};
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      part += g(i);
      part_xhat = fused(g(i), xhat(i), part_xhat);
    }
    C mean_g{0};
    if constexpr (kCenter == Center::kMean) {
      mean_g = static_cast<C>(threads.sum(static_cast<double>(part)) / count);
    }
    const C mean_g_xhat = static_cast<C>(threads.sum(static_cast<double>(part_xhat)) / count);
    for (std::int64_t i = threads.lane; i < columns; i += kSize) {
      const C result = xhat.rstd * (g(i) - mean_g - xhat(i) * mean_g_xhat);
      dx[first + i] = stored<T>(adds ? value_of(dx[first + i]) + result : result);
    }
  }
};

/// dy xhat, of which a gain's gradient is the sum over the rows.
template <typename T, Center kCenter>
struct GainTerm {
  Normalised<T, kCenter> rows;
  const T* dy;

  __device__ Compute<T> operator()(std::int64_t row, std::int64_t j) const {
    return value_of(dy[row * rows.columns + j]) * rows[row](j);
  }
};

/// Without a mean, about zero; `bias` may be empty.
template <Center kCenter>
void norm_forward(Context& context, const char* name, const ConstTensorView& x,
                  const ConstTensorView& gain, const ConstTensorView& bias, double epsilon,
                  const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(context, name, shape.rows, shape.columns,
                 NormForward<T, kCenter>{x.device<T>(), gain.device<T>(), device_or_null<T>(bias),
                                         epsilon, shape.columns, y.device<T>(),
                                         device_or_null<C>(mean), rstd.device<C>()});
  });
}

template <Center kCenter>
void norm_backward_input(Context& context, const char* name, const ConstTensorView& x,
                         const ConstTensorView& gain, const ConstTensorView& mean,
                         const ConstTensorView& rstd, const ConstTensorView& dy,
                         const TensorView& dx, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const Normalised<T, kCenter> rows{x.device<T>(), device_or_null<C>(mean), rstd.device<C>(),
                                      shape.columns};
    for_each_row(context, name, shape.rows, shape.columns,
                 NormBackwardInput<T, kCenter>{rows, gain.device<T>(), dy.device<T>(),
                                               accumulate == Accumulate::kAdd, dx.device<T>()});
  });
}

template <Center kCenter>
void norm_backward_gain(Context& context, const char* name, const ConstTensorView& x,
                        const ConstTensorView& mean, const ConstTensorView& rstd,
                        const ConstTensorView& dy, const TensorView& dgain, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const Normalised<T, kCenter> rows{x.device<T>(), device_or_null<C>(mean), rstd.device<C>(),
                                      shape.columns};
    sum_over_rows<C>(context, name, shape.rows, shape.columns, accumulate, dgain.device<C>(),
                     GainTerm<T, kCenter>{rows, dy.device<T>()});
  });
}

}  // namespace strata::ops::cuda
