#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

#include "norm/cuda_norm_backward.hpp"

// Layer norm and RMS norm on GPUs. Included by .cu files alone.
namespace strata::ops::cuda {

/// dy xhat, whose sum over rows is the gradient of the weight, and with two sums dy, for the bias.
template <typename T, Center kCenter, int kSumCount>
struct WeightTerm {
  static constexpr int kSums = kSumCount;

  Normalised<T, kCenter> rows;
  const T* dy;

  template <int kWidth>
  __device__ auto of_columns(std::int64_t j) const {
    return [of = rows, x = rows.x + j, gradient = dy + j](std::int64_t row, Compute<T>* sums) {
      const auto values = elements_at<kWidth>(x + row * of.columns);
      const auto gradients = elements_at<kWidth>(gradient + row * of.columns);
      const Normalise<Compute<T>> xhat = of[row];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const Compute<T> g = value_of(gradients.at[i]);
        sums[i] += g * xhat(value_of(values.at[i]));
        if constexpr (kSumCount == 2) {
          sums[kWidth + i] += g;
        }
      }
    };
  }
};

/// `bias` may be empty.
template <Center kCenter>
void norm_forward(Context& context, const char* name, const ConstTensorView& x,
                  const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                  const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  const Rows shape = rows_of(x.shape());
  const int columns = static_cast<int>(shape.columns);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(
        context, name, shape.rows, shape.columns,
        NormForward<T, kCenter>{x.device<T>(), weight.device<T>(), device_or_null<T>(bias), epsilon,
                                columns, y.device<T>(), device_or_null<C>(mean), rstd.device<C>()},
        kWarpRegisterRow<T>);
  });
}

template <Center kCenter>
void norm_backward_input(Context& context, const char* name, const ConstTensorView& x,
                         const ConstTensorView& weight, const ConstTensorView& mean,
                         const ConstTensorView& rstd, const ConstTensorView& dy,
                         const ConstTensorView& addend, const TensorView& dx) {
  const Rows shape = rows_of(x.shape());
  const int columns = static_cast<int>(shape.columns);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const Normalised<T, kCenter> rows{x.device<T>(), device_or_null<C>(mean), rstd.device<C>(),
                                      columns};
    for_each_row(context, name, shape.rows, shape.columns,
                 NormBackwardInput<T, kCenter>{rows, weight.device<T>(), dy.device<T>(),
                                               device_or_null<T>(addend), dx.device<T>()},
                 kWarpRegisterRow<T>);
  });
}

/// `dbias` may be empty.
template <Center kCenter>
void norm_backward_weight(Context& context, const char* name, const ConstTensorView& x,
                          const ConstTensorView& mean, const ConstTensorView& rstd,
                          const ConstTensorView& dy, const TensorView& dweight,
                          const TensorView& dbias, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  const int columns = static_cast<int>(shape.columns);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const Normalised<T, kCenter> rows{x.device<T>(), device_or_null<C>(mean), rstd.device<C>(),
                                      columns};
    const T* const gradient = dy.device<T>();
    if (fits_registers<T>(shape.columns)) {
      norm_backward_in_registers<MakesInput::kNo>(
          context, name, shape,
          NormBackwardInput<T, kCenter>{rows, nullptr, gradient, nullptr, nullptr}, dweight, dbias,
          accumulate);
      return;
    }
    const StoreSums<C> store{dweight.device<C>(), device_or_null<C>(dbias),
                             accumulate == Accumulate::kAdd};
    const auto sum = [&]<typename Term>(const Term& term) {
      sum_over_rows<C>(context, name, shape, term, store, rows.x, gradient);
    };
    if (dbias.empty()) {
      sum(WeightTerm<T, kCenter, 1>{rows, gradient});
    } else if constexpr (kCenter == Center::kMean) {
      sum(WeightTerm<T, kCenter, 2>{rows, gradient});
    }
  });
}

/// Both of the above.
template <Center kCenter>
void norm_backward(Context& context, const char* name, const ConstTensorView& x,
                   const ConstTensorView& weight, const ConstTensorView& mean,
                   const ConstTensorView& rstd, const ConstTensorView& dy,
                   const ConstTensorView& addend, const TensorView& dx, const TensorView& dweight,
                   const TensorView& dbias, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    if (!fits_registers<T>(shape.columns)) {
      norm_backward_weight<kCenter>(context, name, x, mean, rstd, dy, dweight, dbias, accumulate);
      norm_backward_input<kCenter>(context, name, x, weight, mean, rstd, dy, addend, dx);
      return;
    }
    const Normalised<T, kCenter> rows{x.device<T>(), device_or_null<C>(mean), rstd.device<C>(),
                                      static_cast<int>(shape.columns)};
    norm_backward_in_registers<MakesInput::kYes>(
        context, name, shape,
        NormBackwardInput<T, kCenter>{rows, weight.device<T>(), dy.device<T>(),
                                      device_or_null<T>(addend), dx.device<T>()},
        dweight, dbias, accumulate);
  });
}

}  // namespace strata::ops::cuda
