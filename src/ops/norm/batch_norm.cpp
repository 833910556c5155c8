#include "strata/ops/batch_norm.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "onednn/primitive_cache.hpp"
#include "simd/run_sums.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

/// Rows of one partial sum: few enough to stay in the L2 cache for a second pass, enough to keep
/// the number of partial sums small.
std::int64_t block_rows(std::int64_t columns) {
  constexpr std::int64_t kLeast = 64;
  return std::max(kLeast, row_grain(columns));
}

/// Two sums of each column for every block of rows: [block][sum][column].
class BlockSums {
 public:
  BlockSums(Context& context, std::int64_t rows, std::int64_t columns)
      : rows_(rows), columns_(columns), grain_(block_rows(columns)) {
    const std::int64_t bytes = blocks() * 2 * columns * static_cast<std::int64_t>(sizeof(double));
    sums_ = reinterpret_cast<double*>(context.primitives().shared(bytes));
    std::fill_n(sums_, blocks() * 2 * columns, 0.0);
  }

  [[nodiscard]] std::int64_t blocks() const { return (rows_ + grain_ - 1) / grain_; }
  [[nodiscard]] std::int64_t grain() const { return grain_; }
  [[nodiscard]] double rows_of(std::int64_t block) const {
    return static_cast<double>(std::min(grain_, rows_ - block * grain_));
  }
  [[nodiscard]] double* first(std::int64_t block) const { return sums_ + 2 * block * columns_; }
  [[nodiscard]] double* second(std::int64_t block) const { return first(block) + columns_; }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t grain_;
  double* sums_;
};

/// Mean and reciprocal standard deviation of each column.
template <typename C>
struct Columns {
  /// `statistic` has x's dtype or its compute dtype.
  template <typename T>
  static std::vector<C> values(const ConstTensorView& statistic) {
    const std::span<const T> from = statistic.host<T>();
    std::vector<C> result(from.size());
    std::transform(from.begin(), from.end(), result.begin(),
                   [](T element) { return static_cast<C>(static_cast<Compute<T>>(element)); });
    return result;
  }

  Columns(const ConstTensorView& means, const ConstTensorView& variances, double epsilon) {
    with_stored(means.dtype(), [&]<typename T>(T) { mean = values<T>(means); });
    with_stored(variances.dtype(), [&]<typename T>(T) { rstd = values<T>(variances); });
    for (C& value : rstd) {
      value = static_cast<C>(1.0 / std::sqrt(static_cast<double>(value) + epsilon));
    }
  }

  std::vector<C> mean;
  std::vector<C> rstd;
};

template <typename T, typename C = Compute<T>>
void block_statistics(const T* x, std::int64_t n, std::int64_t begin, std::int64_t end,
                      double* mean, double* squares) {
  const auto rows = static_cast<double>(end - begin);
  add_row_runs<C>(begin, end, n, mean,
                  [=](std::int64_t row, std::int64_t j) { return static_cast<C>(x[row * n + j]); });
  std::vector<C> centre(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; ++j) {
    mean[j] /= rows;
    centre[static_cast<std::size_t>(j)] = static_cast<C>(mean[j]);
  }
  const C* const centres = centre.data();
  add_row_runs<C>(begin, end, n, squares, [=](std::int64_t row, std::int64_t j) {
    const C difference = static_cast<C>(x[row * n + j]) - centres[j];
    return difference * difference;
  });
  for (std::int64_t j = 0; j < n; ++j) {
    const double rounding = mean[j] - static_cast<double>(centres[j]);
    squares[j] -= rows * rounding * rounding;
  }
}

/// Calls function(g), where g(i) is element i of the gradient before the activation.
template <typename T, typename Function>
void with_gradient(const ConstTensorView& y, const T* dy, const Function& function) {
  using C = Compute<T>;
  if (y.empty()) {
    function([=](std::int64_t i) { return static_cast<C>(dy[i]); });
    return;
  }
  const T* const out = y.host<T>().data();
  function([=](std::int64_t i) {
    const C through = static_cast<C>(dy[i]);
    return static_cast<C>(out[i]) <= C{0} ? C{0} : through;
  });
}

/// Checks the statistics of an operation on the rows of `x`.
void require_statistics(const ConstTensorView& x, const ConstTensorView& mean,
                        const ConstTensorView& variance) {
  const std::int64_t n = x.shape().back();
  for (const ConstTensorView& statistic : {mean, variance}) {
    require(statistic.count() == n &&
                (statistic.dtype() == compute_dtype(x.dtype()) || statistic.dtype() == x.dtype()),
            "batch norm's statistic is {} {}, {} of {} was expected", name_of(statistic.dtype()),
            statistic.shape().text(), n, name_of(compute_dtype(x.dtype())));
  }
}

void require_gradient(const ConstTensorView& x, const ConstTensorView& y,
                      const ConstTensorView& dy) {
  require_count(dy, x.dtype(), x.count(), "batch norm's dy");
  require(y.empty() || (y.dtype() == x.dtype() && y.count() == x.count()),
          "batch norm's y is {} {}, {} {} was expected", name_of(y.dtype()), y.shape().text(),
          name_of(x.dtype()), x.shape().text());
}

/// The mean of the values, added in the order of `steps`. Overwrites them.
template <typename T>
T folded_mean(std::span<T> values, std::span<const ReductionStep> steps) {
  for (const ReductionStep& step : steps) {
    values[static_cast<std::size_t>(step.into)] += values[static_cast<std::size_t>(step.from)];
  }
  return values.front() / static_cast<T>(values.size());
}

}  // namespace

void combine_statistics(Context& context, std::span<const ReductionStep> steps,
                        const ConstTensorView& parts, const TensorView& mean,
                        const TensorView& variance) {
  const Observed observed(context, "combine_statistics", parts, mean, variance);
  const std::int64_t n = mean.count();
  require_count(variance, mean.dtype(), n, "a variance of parts");
  require_like(parts, mean.dtype(), {parts.shape()[0], 2, n}, "statistics of parts");
  require(parts.shape()[0] >= 1, "statistics of no parts");
  require_steps(steps, parts.shape()[0], "a sum of statistics");
  if (observed.handled_by<cuda::combine_statistics>(steps, parts, mean, variance)) {
    return;
  }
  with_floating(mean.dtype(), [&]<typename T>(T) {
    const std::span<const T> from = parts.host<T>();
    std::vector<T> values(static_cast<std::size_t>(parts.shape()[0]));
    const auto at = [&](std::size_t part, std::int64_t row, std::int64_t j) {
      return from[part * 2 * static_cast<std::size_t>(n) + static_cast<std::size_t>(row * n + j)];
    };
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::size_t p = 0; p < values.size(); ++p) {
        values[p] = at(p, 0, j);
      }
      const T center = folded_mean<T>(values, steps);
      for (std::size_t p = 0; p < values.size(); ++p) {
        const T distance = at(p, 0, j) - center;
        values[p] = at(p, 1, j) + distance * distance;
      }
      mean.host<T>()[static_cast<std::size_t>(j)] = center;
      variance.host<T>()[static_cast<std::size_t>(j)] = folded_mean<T>(values, steps);
    }
  });
}

void mean_of_parts(Context& context, std::span<const ReductionStep> steps,
                   const ConstTensorView& parts, const TensorView& mean) {
  const Observed observed(context, "mean_of_parts", parts, mean);
  const std::int64_t n = mean.count();
  require_count(parts, mean.dtype(), parts.shape()[0] * n, "parts of a mean");
  require(parts.shape()[0] >= 1, "a mean of no parts");
  require_steps(steps, parts.shape()[0], "a mean of parts");
  if (observed.handled_by<cuda::mean_of_parts>(steps, parts, mean)) {
    return;
  }
  with_floating(mean.dtype(), [&]<typename T>(T) {
    const std::span<const T> from = parts.host<T>();
    std::vector<T> values(static_cast<std::size_t>(parts.shape()[0]));
    for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j) {
      for (std::size_t p = 0; p < values.size(); ++p) {
        values[p] = from[p * static_cast<std::size_t>(n) + j];
      }
      mean.host<T>()[j] = folded_mean<T>(values, steps);
    }
  });
}

void column_statistics(Context& context, const ConstTensorView& x, const TensorView& mean,
                       const TensorView& variance) {
  const Observed observed(context, "column_statistics", x, mean, variance);
  const auto [rows, n] = rows_of(x.shape());
  require(rows >= 1, "statistics of {} rows", rows);
  require_count(mean, compute_dtype(x.dtype()), n, "column_statistics' mean");
  require_count(variance, compute_dtype(x.dtype()), n, "column_statistics' variance");
  if (observed.handled_by<cuda::column_statistics>(x, mean, variance)) {
    return;
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.host<T>().data();
    C* const means = mean.host<C>().data();
    C* const variances = variance.host<C>().data();
    const BlockSums parts(context, rows, n);
    parallel_for(context, rows, parts.grain(), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t block = begin / parts.grain();
      block_statistics(from, n, begin, end, parts.first(block), parts.second(block));
    });
    const auto count = static_cast<double>(rows);
    std::vector<double> centre(static_cast<std::size_t>(n));
    std::vector<double> squares(static_cast<std::size_t>(n));
    for (std::int64_t block = 0; block < parts.blocks(); ++block) {
      for (std::int64_t j = 0; j < n; ++j) {
        centre[static_cast<std::size_t>(j)] += parts.rows_of(block) * parts.first(block)[j] / count;
      }
    }
    for (std::int64_t block = 0; block < parts.blocks(); ++block) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double apart = parts.first(block)[j] - centre[static_cast<std::size_t>(j)];
        squares[static_cast<std::size_t>(j)] +=
            parts.second(block)[j] + parts.rows_of(block) * apart * apart;
      }
    }
    for (std::int64_t j = 0; j < n; ++j) {
      means[j] = static_cast<C>(centre[static_cast<std::size_t>(j)]);
      // Rounding can make the sum of a constant column slightly negative.
      const double sum = squares[static_cast<std::size_t>(j)];
      variances[j] = static_cast<C>((sum < 0.0 ? 0.0 : sum) / count);
    }
  });
}

void batch_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& mean,
                        const ConstTensorView& variance, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, Activation activation,
                        const TensorView& y) {
  const Observed observed(context, "batch_norm_forward", x, mean, variance, weight, bias, y);
  const auto [rows, n] = rows_of(x.shape());
  require_statistics(x, mean, variance);
  require_count(weight, x.dtype(), n, "batch norm's weight");
  require_count(bias, x.dtype(), n, "batch norm's bias");
  require_count(y, x.dtype(), x.count(), "batch norm's y");
  require(activation == Activation::kNone || activation == Activation::kRelu, "batch norm with {}",
          name_of(activation));
  if (observed.handled_by<cuda::batch_norm_forward>(x, mean, variance, weight, bias, epsilon,
                                                    activation, y)) {
    return;
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const Columns<C> columns(mean, variance, epsilon);
    std::vector<C> scale(columns.rstd);
    const std::span<const T> weights = weight.host<T>();
    for (std::size_t j = 0; j < scale.size(); ++j) {
      scale[j] *= static_cast<C>(weights[j]);
    }
    const T* const from = x.host<T>().data();
    const C* const m = columns.mean.data();
    const C* const s = scale.data();
    const T* const b = bias.host<T>().data();
    T* const to = y.host<T>().data();
    const bool relu = activation == Activation::kRelu;
    parallel_for_rows(context, rows, n, [=](std::int64_t row) {
      const T* const in = from + row * n;
      const auto normal = [=](std::int64_t j) {
        return (static_cast<C>(in[j]) - m[j]) * s[j] + static_cast<C>(b[j]);
      };
      if (relu) {
        store_terms(to + row * n, 0, n, [=](std::int64_t j) {
          const C value = normal(j);
          return value < C{0} ? C{0} : value;
        });
      } else {
        store_terms(to + row * n, 0, n, normal);
      }
    });
  });
}

void batch_norm_backward_sums(Context& context, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& variance,
                              double epsilon, const ConstTensorView& y, const ConstTensorView& dy,
                              const TensorView& dweight, const TensorView& dbias) {
  const Observed observed(context, "batch_norm_backward_sums", x, mean, variance, y, dy, dweight,
                          dbias);
  const auto [rows, n] = rows_of(x.shape());
  require_statistics(x, mean, variance);
  require_gradient(x, y, dy);
  require_count(dweight, compute_dtype(x.dtype()), n, "batch norm's dweight");
  require_count(dbias, compute_dtype(x.dtype()), n, "batch norm's dbias");
  if (observed.handled_by<cuda::batch_norm_backward_sums>(x, mean, variance, epsilon, y, dy,
                                                          dweight, dbias)) {
    return;
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const Columns<C> columns(mean, variance, epsilon);
    const T* const from = x.host<T>().data();
    const C* const m = columns.mean.data();
    const C* const r = columns.rstd.data();
    const BlockSums parts(context, rows, n);
    with_gradient(y, dy.host<T>().data(), [&, n = n](const auto& g) {
      parallel_for(context, rows, parts.grain(), [&, n = n](std::int64_t begin, std::int64_t end) {
        const std::int64_t block = begin / parts.grain();
        add_row_runs<C>(begin, end, n, parts.first(block),
                        [=](std::int64_t row, std::int64_t j) { return g(row * n + j); });
        add_row_runs<C>(begin, end, n, parts.second(block), [=](std::int64_t row, std::int64_t j) {
          const std::int64_t i = row * n + j;
          return g(i) * ((static_cast<C>(from[i]) - m[j]) * r[j]);
        });
      });
    });
    const std::span<C> weights = dweight.host<C>();
    const std::span<C> biases = dbias.host<C>();
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      double sum_xhat = 0.0;
      for (std::int64_t block = 0; block < parts.blocks(); ++block) {
        sum += parts.first(block)[j];
        sum_xhat += parts.second(block)[j];
      }
      biases[static_cast<std::size_t>(j)] = static_cast<C>(sum);
      weights[static_cast<std::size_t>(j)] = static_cast<C>(sum_xhat);
    }
  });
}

void batch_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& mean, const ConstTensorView& variance,
                               const ConstTensorView& weight, double epsilon,
                               const ConstTensorView& y, const ConstTensorView& dy,
                               const ConstTensorView& dweight, const ConstTensorView& dbias,
                               const TensorView& dx) {
  const Observed observed(context, "batch_norm_backward_input", x, mean, variance, weight, y, dy,
                          dweight, dbias, dx);
  const auto [rows, n] = rows_of(x.shape());
  require_statistics(x, mean, variance);
  require_gradient(x, y, dy);
  require_count(weight, x.dtype(), n, "batch norm's weight");
  require_count(dweight, compute_dtype(x.dtype()), n, "batch norm's dweight");
  require_count(dbias, compute_dtype(x.dtype()), n, "batch norm's dbias");
  require_count(dx, x.dtype(), x.count(), "batch norm's dx");
  if (observed.handled_by<cuda::batch_norm_backward_input>(x, mean, variance, weight, epsilon, y,
                                                           dy, dweight, dbias, dx)) {
    return;
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const Columns<C> columns(mean, variance, epsilon);
    std::vector<C> scale(columns.rstd);
    std::vector<C> level(columns.rstd);
    std::vector<C> slope(columns.rstd);
    const auto count = static_cast<double>(rows);
    for (std::size_t j = 0; j < scale.size(); ++j) {
      scale[j] *= static_cast<C>(weight.host<T>()[j]);
      level[j] = static_cast<C>(static_cast<double>(dbias.host<C>()[j]) / count);
      slope[j] = static_cast<C>(static_cast<double>(dweight.host<C>()[j]) / count *
                                static_cast<double>(columns.rstd[j]));
    }
    const T* const from = x.host<T>().data();
    const C* const m = columns.mean.data();
    const C* const s = scale.data();
    const C* const l = level.data();
    const C* const k = slope.data();
    T* const to = dx.host<T>().data();
    with_gradient(y, dy.host<T>().data(), [&, rows = rows, n = n](const auto& g) {
      parallel_for_rows(context, rows, n, [=](std::int64_t row) {
        const std::int64_t first = row * n;
        store_terms(to + first, 0, n, [=](std::int64_t j) {
          const C centred = static_cast<C>(from[first + j]) - m[j];
          return s[j] * (g(first + j) - l[j] - centred * k[j]);
        });
      });
    });
  });
}

}  // namespace strata::ops
