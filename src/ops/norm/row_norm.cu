#include <cstdint>

#include "strata/ops/row_norm.hpp"

#include "cuda/ops.hpp"
#include "norm/cuda_norm_backward.hpp"

namespace strata::ops::cuda {
namespace {

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

/// Calls function<center, the device type of `dtype`>().
template <typename Function>
void with_norm(Center center, DType dtype, const Function& function) {
  with_device_type(dtype, [&]<typename T>(T) {
    if (center == Center::kMean) {
      function.template operator()<Center::kMean, T>();
    } else {
      function.template operator()<Center::kZero, T>();
    }
  });
}

template <typename T, Center kCenter>
Normalised<T, kCenter> normalised(const ConstTensorView& x, const ConstTensorView& mean,
                                  const ConstTensorView& rstd) {
  using C = Compute<T>;
  return {x.device<T>(), device_or_null<C>(mean), rstd.device<C>(),
          static_cast<int>(rows_of(x.shape()).columns)};
}

}  // namespace

void row_norm_forward(Context& context, const RowNorm& norm, const ConstTensorView& x,
                      const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                      const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  const Rows shape = rows_of(x.shape());
  with_norm(norm.center, x.dtype(), [&]<Center kCenter, typename T>() {
    using C = Compute<T>;
    const char* const name = kCenter == Center::kMean ? "layer_norm_forward" : "rms_norm_forward";
    for_each_row(context, name, shape.rows, shape.columns,
                 NormForward<T, kCenter>{x.device<T>(), weight.device<T>(), device_or_null<T>(bias),
                                         epsilon, norm.offset, static_cast<int>(shape.columns),
                                         y.device<T>(), device_or_null<C>(mean), rstd.device<C>()},
                 kWarpRegisterRow<T>);
  });
}

void row_norm_backward_input(Context& context, const RowNorm& norm, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& mean,
                             const ConstTensorView& rstd, const ConstTensorView& dy,
                             const ConstTensorView& addend, const TensorView& dx) {
  const Rows shape = rows_of(x.shape());
  with_norm(norm.center, x.dtype(), [&]<Center kCenter, typename T>() {
    const char* const name =
        kCenter == Center::kMean ? "layer_norm_backward_input" : "rms_norm_backward_input";
    for_each_row(context, name, shape.rows, shape.columns,
                 NormBackwardInput<T, kCenter>{normalised<T, kCenter>(x, mean, rstd),
                                               weight.device<T>(), norm.offset, dy.device<T>(),
                                               device_or_null<T>(addend), dx.device<T>()},
                 kWarpRegisterRow<T>);
  });
}

void row_norm_backward_weight(Context& context, const RowNorm& norm, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& rstd,
                              const ConstTensorView& dy, const TensorView& dweight,
                              const TensorView& dbias, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_norm(norm.center, x.dtype(), [&]<Center kCenter, typename T>() {
    using C = Compute<T>;
    const char* const name =
        kCenter == Center::kMean ? "layer_norm_backward_weight" : "rms_norm_backward_weight";
    const Normalised<T, kCenter> rows = normalised<T, kCenter>(x, mean, rstd);
    const T* const gradient = dy.device<T>();
    if (fits_registers<T>(shape.columns)) {
      norm_backward_in_registers<MakesInput::kNo>(
          context, name, shape,
          NormBackwardInput<T, kCenter>{rows, nullptr, norm.offset, gradient, nullptr, nullptr},
          dweight, dbias, accumulate);
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

void row_norm_backward(Context& context, const RowNorm& norm, const ConstTensorView& x,
                       const ConstTensorView& weight, const ConstTensorView& mean,
                       const ConstTensorView& rstd, const ConstTensorView& dy,
                       const ConstTensorView& addend, const TensorView& dx,
                       const TensorView& dweight, const TensorView& dbias, Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_norm(norm.center, x.dtype(), [&]<Center kCenter, typename T>() {
    if (!fits_registers<T>(shape.columns)) {
      cuda::row_norm_backward_weight(context, norm, x, mean, rstd, dy, dweight, dbias, accumulate);
      cuda::row_norm_backward_input(context, norm, x, weight, mean, rstd, dy, addend, dx);
      return;
    }
    const char* const name = kCenter == Center::kMean ? "layer_norm_backward" : "rms_norm_backward";
    norm_backward_in_registers<MakesInput::kYes>(
        context, name, shape,
        NormBackwardInput<T, kCenter>{normalised<T, kCenter>(x, mean, rstd), weight.device<T>(),
                                      norm.offset, dy.device<T>(), device_or_null<T>(addend),
                                      dx.device<T>()},
        dweight, dbias, accumulate);
  });
}

}  // namespace strata::ops::cuda
