#include "strata/ops/layer_norm.hpp"

#include <cmath>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "column_sums.hpp"
#include "lanes.hpp"

namespace strata::ops {
namespace {

template <typename T>
struct RowStatistics {
  T mean;
  T rstd;
};

template <typename T>
RowStatistics<T> statistics_of(const T* x, std::int64_t n, double epsilon) {
  const double count = static_cast<double>(n);
  const T mean = static_cast<T>(lane_sum<T>(n, [=](std::int64_t i) { return x[i]; }) / count);
  // A second pass: the difference of two large sums would lose the variance of a narrow row.
  const double variance = lane_sum<T>(n,
                                      [=](std::int64_t i) {
                                        const T difference = x[i] - mean;
                                        return difference * difference;
                                      }) /
                          count;
  return {mean, static_cast<T>(1.0 / std::sqrt(variance + epsilon))};
}

template <typename T>
void backward_row(const T* x, const T* gain, T mean, T rstd, const T* dy, std::int64_t n, T* dx) {
  const double count = static_cast<double>(n);
  const T mean_g =
      static_cast<T>(lane_sum<T>(n, [=](std::int64_t i) { return dy[i] * gain[i]; }) / count);
  const T mean_g_xhat = static_cast<T>(
      lane_sum<T>(n, [=](std::int64_t i) { return dy[i] * gain[i] * ((x[i] - mean) * rstd); }) /
      count);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T xhat = (x[i] - mean) * rstd;
    dx[i] = rstd * (dy[i] * gain[i] - mean_g - xhat * mean_g_xhat);
  }
}

}  // namespace

void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& gain,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(gain, x.dtype(), n, "layer norm's gain");
  require(bias.empty() || (bias.dtype() == x.dtype() && bias.count() == n),
          "layer norm's bias is {}, {} was expected", bias.shape().text(), n);
  require_like(y, x.dtype(), x.shape(), "layer norm's y");
  require(x.raw() != y.raw(), "layer norm in place");
  require_count(mean, x.dtype(), rows, "layer norm's mean");
  require_count(rstd, x.dtype(), rows, "layer norm's rstd");
  with_floating(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* from = x.host<T>().data();
    const T* g = gain.host<T>().data();
    const T* b = bias.empty() ? nullptr : bias.host<T>().data();
    T* to = y.host<T>().data();
    T* means = mean.host<T>().data();
    T* rstds = rstd.host<T>().data();
    parallel_for(context, rows, row_grain(n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* in = from + row * n;
        T* out = to + row * n;
        const RowStatistics<T> row_statistics = statistics_of(in, n, epsilon);
        const T m = row_statistics.mean;
        const T r = row_statistics.rstd;
        means[row] = m;
        rstds[row] = r;
        // NOLINTNEXTLINE(bugprone-branch-clone): the branches differ by the bias.
        if (b != nullptr) {
#pragma omp simd
          for (std::int64_t i = 0; i < n; ++i) {
            out[i] = (in[i] - m) * r * g[i] + b[i];
          }
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < n; ++i) {
            out[i] = (in[i] - m) * r * g[i];
          }
        }
      }
    });
  });
}

void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& gain, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const TensorView& dx) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(gain, x.dtype(), n, "layer norm's gain");
  require_count(mean, x.dtype(), rows, "layer norm's mean");
  require_count(rstd, x.dtype(), rows, "layer norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "layer norm's dy");
  require_like(dx, x.dtype(), x.shape(), "layer norm's dx");
  with_floating(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* from = x.host<T>().data();
    const T* g = gain.host<T>().data();
    const T* means = mean.host<T>().data();
    const T* rstds = rstd.host<T>().data();
    const T* incoming = dy.host<T>().data();
    T* outgoing = dx.host<T>().data();
    parallel_for(context, rows, row_grain(n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        backward_row(from + row * n, g, means[row], rstds[row], incoming + row * n, n,
                     outgoing + row * n);
      }
    });
  });
}

void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dgain,
                                const TensorView& dbias, Accumulate accumulate) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(mean, x.dtype(), rows, "layer norm's mean");
  require_count(rstd, x.dtype(), rows, "layer norm's rstd");
  require_like(dy, x.dtype(), x.shape(), "layer norm's dy");
  require_count(dgain, x.dtype(), n, "layer norm's dgain");
  with_floating(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* from = x.host<T>().data();
    const T* means = mean.host<T>().data();
    const T* rstds = rstd.host<T>().data();
    const T* incoming = dy.host<T>().data();
    sum_over_rows<T>(context, rows, n, accumulate, dgain.host<T>().data(),
                     [=](std::int64_t row, std::int64_t j) {
                       const std::int64_t i = row * n + j;
                       return incoming[i] * ((from[i] - means[row]) * rstds[row]);
                     });
  });
  if (!dbias.empty()) {
    column_sum(context, dy, dbias, accumulate);
  }
}

}  // namespace strata::ops
