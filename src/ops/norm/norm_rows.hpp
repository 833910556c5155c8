#pragma once

#include <cmath>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/ops/row_norm.hpp"

#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

// Layer norm and RMS norm on the CPU: what they do with a row; cuda_norm_rows.hpp does the same on
// GPUs. With Center::kZero means are null pointers and not read.
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

/// The factor of xhat(i): weight[i], or 1 + weight[i].
template <WeightOffset kOffset, typename T>
auto factors(const T* weight) {
  using C = Compute<T>;
  return [=](std::int64_t i) {
    if constexpr (kOffset == WeightOffset::kOne) {
      return C{1} + static_cast<C>(weight[i]);
    } else {
      return static_cast<C>(weight[i]);
    }
  };
}

/// y = xhat factor + bias of one row, and the row's statistics. `bias` may be null.
template <RowNorm kNorm, typename T, typename C = Compute<T>>
void norm_forward_row(const T* x, const T* weight, const T* bias, double epsilon, std::int64_t n,
                      T* y, C* mean, C* rstd) {
  const double count = static_cast<double>(n);
  C center{0};
  if constexpr (kNorm.center == Center::kMean) {
    const double sum = simd_sum<C>(n, [=](std::int64_t i) { return static_cast<C>(x[i]); });
    center = static_cast<C>(sum / count);
    *mean = center;
  }
  // A second pass: the difference of two large sums would lose the variance of a narrow row.
  const double squares = simd_sum<C>(n, [=](std::int64_t i) {
    const C value = static_cast<C>(x[i]);
    const C difference = kNorm.center == Center::kMean ? value - center : value;
    return difference * difference;
  });
  *rstd = static_cast<C>(1.0 / std::sqrt(squares / count + epsilon));
  const auto xhat = normalised<kNorm.center>(x, center, *rstd);
  const auto factor = factors<kNorm.offset>(weight);
  if (bias == nullptr) {
    store_terms(y, 0, n, [=](std::int64_t i) { return xhat(i) * factor(i); });
  } else {
    store_terms(y, 0, n,
                [=](std::int64_t i) { return xhat(i) * factor(i) + static_cast<C>(bias[i]); });
  }
}

/// dx of one row. kOverwrite does not read `addend`.
template <RowNorm kNorm, Accumulate kAccumulate, typename T, typename C = Compute<T>>
void norm_backward_row(const T* x, const T* weight, C mean, C rstd, const T* dy, const T* addend,
                       std::int64_t n, T* dx) {
  const double count = static_cast<double>(n);
  const auto factor = factors<kNorm.offset>(weight);
  const auto g = [=](std::int64_t i) { return static_cast<C>(dy[i]) * factor(i); };
  const auto xhat = normalised<kNorm.center>(x, mean, rstd);
  C mean_g{0};
  if constexpr (kNorm.center == Center::kMean) {
    mean_g = static_cast<C>(simd_sum<C>(n, g) / count);
  }
  const C mean_g_xhat =
      static_cast<C>(simd_sum<C>(n, [=](std::int64_t i) { return g(i) * xhat(i); }) / count);
  store_terms(dx, 0, n, [=](std::int64_t i) {
    const C centered = kNorm.center == Center::kMean ? g(i) - mean_g : g(i);
    const C result = rstd * (centered - xhat(i) * mean_g_xhat);
    return kAccumulate == Accumulate::kAdd ? static_cast<C>(addend[i]) + result : result;
  });
}

}  // namespace strata::ops
