#include "strata/ops/layer_norm.hpp"

#include <cmath>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "simd/column_sums.hpp"
#include "simd/rounded.hpp"
#include "simd/simd_reduction.hpp"

namespace strata::ops {
namespace {

template <typename C>
struct RowStatistics {
  C mean;
  C rstd;
};

template <typename T, typename C = Compute<T>>
RowStatistics<C> statistics_of(const T* x, std::int64_t n, double epsilon) {
  const double count = static_cast<double>(n);
  const C mean =
      static_cast<C>(simd_sum<C>(n, [=](std::int64_t i) { return static_cast<C>(x[i]); }) / count);
  // A second pass: the difference of two large sums would lose the variance of a narrow row.
  const double variance = simd_sum<C>(n,
                                      [=](std::int64_t i) {
                                        const C difference = static_cast<C>(x[i]) - mean;
                                        return difference * difference;
                                      }) /
                          count;
  return {mean, static_cast<C>(1.0 / std::sqrt(variance + epsilon))};
}

/// `bias` may be null.
template <typename T, typename C>
void forward_row(const T* x, const T* weight, const T* bias, const RowStatistics<C>& row,
                 std::int64_t n, T* y) {
  const C mean = row.mean;
  const C rstd = row.rstd;
  // NOLINTNEXTLINE(bugprone-branch-clone): the branches differ by the bias.
  if (bias != nullptr) {
    store_terms(y, 0, n, [=](std::int64_t i) {
      return (static_cast<C>(x[i]) - mean) * rstd * static_cast<C>(weight[i]) +
             static_cast<C>(bias[i]);
    });
  } else {
    store_terms(y, 0, n, [=](std::int64_t i) {
      return (static_cast<C>(x[i]) - mean) * rstd * static_cast<C>(weight[i]);
    });
  }
}

/// `addend` is read with kAdd alone.
template <Accumulate kAccumulate, typename T, typename C>
void backward_row(const T* x, const T* weight, const RowStatistics<C>& row, const T* dy,
                  const T* addend, std::int64_t n, T* dx) {
  const double count = static_cast<double>(n);
  const C mean = row.mean;
  const C rstd = row.rstd;
  const auto g = [=](std::int64_t i) { return static_cast<C>(dy[i]) * static_cast<C>(weight[i]); };
  const auto xhat = [=](std::int64_t i) { return (static_cast<C>(x[i]) - mean) * rstd; };
  const C mean_g = static_cast<C>(simd_sum<C>(n, g) / count);
  const C mean_g_xhat =
      static_cast<C>(simd_sum<C>(n, [=](std::int64_t i) { return g(i) * xhat(i); }) / count);
  store_terms(dx, 0, n, [=](std::int64_t i) {
    const C result = rstd * (g(i) - mean_g - xhat(i) * mean_g_xhat);
    return kAccumulate == Accumulate::kAdd ? static_cast<C>(addend[i]) + result : result;
  });
}

template <Accumulate kAccumulate, typename T>
void backward_rows(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                   const ConstTensorView& mean, const ConstTensorView& rstd,
                   const ConstTensorView& dy, const ConstTensorView& addend, const TensorView& dx) {
  using C = Compute<T>;
  constexpr bool kAdds = kAccumulate == Accumulate::kAdd;
  const std::int64_t n = x.shape().back();
  const T* from = x.host<T>().data();
  const T* g = weight.host<T>().data();
  const C* means = mean.host<C>().data();
  const C* rstds = rstd.host<C>().data();
  const T* incoming = dy.host<T>().data();
  const T* added = kAdds ? addend.host<T>().data() : nullptr;
  T* outgoing = dx.host<T>().data();
  parallel_for(
      context, rows_of(x.shape()).rows, row_grain(n), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          backward_row<kAccumulate>(from + row * n, g, RowStatistics<C>{means[row], rstds[row]},
                                    incoming + row * n, kAdds ? added + row * n : nullptr, n,
                                    outgoing + row * n);
        }
      });
}

}  // namespace

void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "layer norm's weight");
  require(bias.empty() || (bias.dtype() == x.dtype() && bias.count() == n),
          "layer norm's bias is {}, {} was expected", bias.shape().text(), n);
  require_like(y, x.dtype(), x.shape(), "layer norm's y");
  require(x.empty() || x.raw() != y.raw(), "layer norm in place");
  require_count(mean, compute_dtype(x.dtype()), rows, "layer norm's mean");
  require_count(rstd, compute_dtype(x.dtype()), rows, "layer norm's rstd");
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      return cuda::layer_norm_forward(context, x, weight, bias, epsilon, y, mean, rstd);
    }
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    const T* g = weight.host<T>().data();
    const T* b = bias.empty() ? nullptr : bias.host<T>().data();
    T* to = y.host<T>().data();
    C* means = mean.host<C>().data();
    C* rstds = rstd.host<C>().data();
    parallel_for(context, rows, row_grain(n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = from + row * n;
        const RowStatistics<C> statistics = statistics_of(in, n, epsilon);
        means[row] = statistics.mean;
        rstds[row] = statistics.rstd;
        forward_row(in, g, b, statistics, n, to + row * n);
      }
    });
  });
}

void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& weight, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const ConstTensorView& addend, const TensorView& dx) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(weight, x.dtype(), n, "layer norm's weight");
  require_count(mean, compute_dtype(x.dtype()), rows, "layer norm's mean");
  require_count(rstd, compute_dtype(x.dtype()), rows, "layer norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "layer norm's dy");
  if (!addend.empty()) {
    require_like(addend, x.dtype(), x.shape(), "layer norm's addend");
  }
  require_like(dx, x.dtype(), x.shape(), "layer norm's dx");
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      return cuda::layer_norm_backward_input(context, x, weight, mean, rstd, dy, addend, dx);
    }
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    const auto run = addend.empty() ? backward_rows<Accumulate::kOverwrite, T>
                                    : backward_rows<Accumulate::kAdd, T>;
    run(context, x, weight, mean, rstd, dy, addend, dx);
  });
}

void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dweight,
                                const TensorView& dbias, Accumulate accumulate) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(mean, compute_dtype(x.dtype()), rows, "layer norm's mean");
  require_count(rstd, compute_dtype(x.dtype()), rows, "layer norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "layer norm's dy");
  require_count(dweight, compute_dtype(x.dtype()), n, "layer norm's dweight");
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      return cuda::layer_norm_backward_weight(context, x, mean, rstd, dy, dweight, dbias,
                                              accumulate);
    }
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    const C* means = mean.host<C>().data();
    const C* rstds = rstd.host<C>().data();
    const T* incoming = dy.host<T>().data();
    sum_over_rows<C>(context, rows, n, accumulate, dweight.host<C>().data(),
                     [=](std::int64_t row, std::int64_t j) {
                       const std::int64_t i = row * n + j;
                       return static_cast<C>(incoming[i]) *
                              ((static_cast<C>(from[i]) - means[row]) * rstds[row]);
                     });
  });
  if (!dbias.empty()) {
    column_sum(context, dy, dbias, accumulate);
  }
}

}  // namespace strata::ops
