#pragma once

#include <cmath>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/tensor.hpp"

#include "checks.hpp"
#include "norm/center.hpp"
#include "simd/column_sums.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

// Layer norm and RMS norm on the CPU: both scale a row to unit deviation, measured from its mean or
// from zero; cuda_norm.hpp does the same on GPUs. With Center::kZero means are empty tensors or
// null pointers and not read.
namespace strata::ops {

/// xhat(i) = (x[i] - mean) rstd.
template <Center kCenter, typename T>
auto normalised(const T* x, [[maybe_unused]] Compute<T> mean, Compute<T> rstd) {
  using C = Compute<T>;
  return [=](std::int64_t i) {
    if constexpr (kCenter == Center::kMean) {
      return (static_cast<C>(x[i]) - mean) * rstd;
    } else {
      return static_cast<C>(x[i]) * rstd;
    }
  };
}

/// y = xhat weight + bias of one row, and the row's statistics. `bias` may be null.
template <Center kCenter, typename T, typename C = Compute<T>>
void norm_forward_row(const T* x, const T* weight, const T* bias, double epsilon, std::int64_t n,
                      T* y, C* mean, C* rstd) {
  const double count = static_cast<double>(n);
  C center{0};
  if constexpr (kCenter == Center::kMean) {
    const double sum = simd_sum<C>(n, [=](std::int64_t i) { return static_cast<C>(x[i]); });
    center = static_cast<C>(sum / count);
    *mean = center;
  }
  // A second pass: the difference of two large sums would lose the variance of a narrow row.
  const double squares = simd_sum<C>(n, [=](std::int64_t i) {
    const C value = static_cast<C>(x[i]);
    const C difference = kCenter == Center::kMean ? value - center : value;
    return difference * difference;
  });
  *rstd = static_cast<C>(1.0 / std::sqrt(squares / count + epsilon));
  const auto xhat = normalised<kCenter>(x, center, *rstd);
  if (bias == nullptr) {
    store_terms(y, 0, n, [=](std::int64_t i) { return xhat(i) * static_cast<C>(weight[i]); });
  } else {
    store_terms(y, 0, n, [=](std::int64_t i) {
      return xhat(i) * static_cast<C>(weight[i]) + static_cast<C>(bias[i]);
    });
  }
}

/// dx = addend + rstd (g - mean(g) - xhat mean(g xhat)) of one row with g = dy weight; mean(g) is
/// left out with Center::kZero. kOverwrite does not read `addend`.
template <Center kCenter, Accumulate kAccumulate, typename T, typename C = Compute<T>>
void norm_backward_row(const T* x, const T* weight, C mean, C rstd, const T* dy, const T* addend,
                       std::int64_t n, T* dx) {
  const double count = static_cast<double>(n);
  const auto g = [=](std::int64_t i) { return static_cast<C>(dy[i]) * static_cast<C>(weight[i]); };
  const auto xhat = normalised<kCenter>(x, mean, rstd);
  C mean_g{0};
  if constexpr (kCenter == Center::kMean) {
    mean_g = static_cast<C>(simd_sum<C>(n, g) / count);
  }
  const C mean_g_xhat =
      static_cast<C>(simd_sum<C>(n, [=](std::int64_t i) { return g(i) * xhat(i); }) / count);
  store_terms(dx, 0, n, [=](std::int64_t i) {
    const C centered = kCenter == Center::kMean ? g(i) - mean_g : g(i);
    const C result = rstd * (centered - xhat(i) * mean_g_xhat);
    return kAccumulate == Accumulate::kAdd ? static_cast<C>(addend[i]) + result : result;
  });
}

/// `bias` may be empty.
template <Center kCenter>
void norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                  const ConstTensorView& bias, double epsilon, const TensorView& y,
                  const TensorView& mean, const TensorView& rstd) {
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const std::int64_t n = rows_of(x.shape()).columns;
    const T* from = x.host<T>().data();
    const T* weights = weight.host<T>().data();
    const T* biases = host_or_null<T>(bias);
    T* to = y.host<T>().data();
    C* means = host_or_null<C>(mean);
    C* rstds = rstd.host<C>().data();
    parallel_for_rows(context, rows_of(x.shape()).rows, n, [=](std::int64_t row) {
      norm_forward_row<kCenter>(from + row * n, weights, biases, epsilon, n, to + row * n,
                                kCenter == Center::kMean ? means + row : nullptr, rstds + row);
    });
  });
}

/// `addend` may be empty.
template <Center kCenter>
void norm_backward_input(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& mean, const ConstTensorView& rstd,
                         const ConstTensorView& dy, const ConstTensorView& addend,
                         const TensorView& dx) {
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const std::int64_t n = rows_of(x.shape()).columns;
    const T* from = x.host<T>().data();
    const T* weights = weight.host<T>().data();
    const C* means = host_or_null<C>(mean);
    const C* rstds = rstd.host<C>().data();
    const T* incoming = dy.host<T>().data();
    const T* added = host_or_null<T>(addend);
    T* outgoing = dx.host<T>().data();
    parallel_for_rows(context, rows_of(x.shape()).rows, n, [=](std::int64_t row) {
      const std::int64_t first = row * n;
      const C center = kCenter == Center::kMean ? means[row] : C{0};
      if (added == nullptr) {
        norm_backward_row<kCenter, Accumulate::kOverwrite>(from + first, weights, center,
                                                           rstds[row], incoming + first, added, n,
                                                           outgoing + first);
      } else {
        norm_backward_row<kCenter, Accumulate::kAdd>(from + first, weights, center, rstds[row],
                                                     incoming + first, added + first, n,
                                                     outgoing + first);
      }
    });
  });
}

template <Center kCenter>
void norm_backward_weight(Context& context, const ConstTensorView& x, const ConstTensorView& mean,
                          const ConstTensorView& rstd, const ConstTensorView& dy,
                          const TensorView& dweight, Accumulate accumulate) {
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const auto [rows, n] = rows_of(x.shape());
    const T* from = x.host<T>().data();
    const C* means = host_or_null<C>(mean);
    const C* rstds = rstd.host<C>().data();
    const T* incoming = dy.host<T>().data();
    sum_over_rows<C>(context, rows, n, accumulate, dweight.host<C>().data(),
                     [=, n = n](std::int64_t row, std::int64_t j) {
                       const C center = kCenter == Center::kMean ? means[row] : C{0};
                       const auto xhat = normalised<kCenter>(from + row * n, center, rstds[row]);
                       return static_cast<C>(incoming[row * n + j]) * xhat(j);
                     });
  });
}

}  // namespace strata::ops
