#include "strata/ops/batch_norm.hpp"

#include "checks.hpp"
#include "cuda/columns.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// parts[piece, j] = the mean of a column's rows and the sum of squared deviations from it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles, const T* x,
                      Sums<double>* parts) {
  using C = Compute<T>;
  const Piece<kPartRows> at(rows, tiles);
  if (at.column >= columns || at.first >= rows) {
    return;
  }
  const auto value = [&](std::int64_t row) { return value_of(x[row * columns + at.column]); };
  const double count = static_cast<double>(at.end - at.first);
  const double mean = sum_runs<C>(at.first, at.end,
                                  [&](std::int64_t row) {
                                    return Sums<C>{value(row), C{0}};
                                  })
                          .first /
                      count;
  const C centre = static_cast<C>(mean);
  const double squares = sum_runs<C>(at.first, at.end, [&](std::int64_t row) {
                           const C difference = value(row) - centre;
                           return Sums<C>{difference * difference, C{0}};
                         }).first;
  const double rounding = mean - static_cast<double>(centre);
  parts[at.number * columns + at.column] = {mean, squares - count * rounding * rounding};
}

/// One thread for each column: combines the parts' statistics in order.
template <typename C>
__global__ void join_statistics_kernel(std::int64_t rows, std::int64_t columns,
                                       const Sums<double>* parts, C* means, C* variances) {
  const std::int64_t j = thread_number();
  if (j >= columns) {
    return;
  }
  const double count = static_cast<double>(rows);
  const auto rows_of_part = [=](std::int64_t first) {
    return static_cast<double>(first + kPartRows < rows ? kPartRows : rows - first);
  };
  double centre = 0.0;
  for (std::int64_t first = 0; first < rows; first += kPartRows) {
    centre += rows_of_part(first) * parts[first / kPartRows * columns + j].first / count;
  }
  double squares = 0.0;
  for (std::int64_t first = 0; first < rows; first += kPartRows) {
    const Sums<double> part = parts[first / kPartRows * columns + j];
    const double apart = part.first - centre;
    squares += part.second + rows_of_part(first) * apart * apart;
  }
  means[j] = static_cast<C>(centre);
  // Rounding can make the sum of a constant column slightly negative.
  variances[j] = static_cast<C>((squares < 0.0 ? 0.0 : squares) / count);
}

/// A statistic of each column, in x's dtype or its compute dtype.
template <typename T>
class Statistic {
 public:
  explicit Statistic(const ConstTensorView& view)
      : computed_(is_stored(view) ? nullptr : view.device<Compute<T>>()),
        stored_(is_stored(view) ? view.device<T>() : nullptr) {}

  __device__ Compute<T> operator[](std::int64_t j) const {
    return stored_ == nullptr ? computed_[j] : value_of(stored_[j]);
  }

 private:
  static bool is_stored(const ConstTensorView& view) { return view.dtype() == kDTypeOf<T>; }

  const Compute<T>* computed_;
  const T* stored_;
};

/// Statistics that normalise the columns.
template <typename T>
struct Columns {
  Statistic<T> mean;
  Statistic<T> variance;
  double epsilon;

  __device__ Compute<T> rstd(std::int64_t j) const {
    return static_cast<Compute<T>>(1.0 / sqrt(static_cast<double>(variance[j]) + epsilon));
  }
};

/// The gradient before the activation, by element. `y` is null without activation.
template <typename T>
struct Gradient {
  const T* y;
  const T* dy;

  __device__ Compute<T> operator[](std::int64_t i) const {
    const Compute<T> through = value_of(dy[i]);
    return y != nullptr && value_of(y[i]) <= Compute<T>{0} ? Compute<T>{0} : through;
  }
};

/// parts[piece, j] = a column's sums of g and of g xhat.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gradient_sums_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles, const T* x,
                         Columns<T> with, Gradient<T> gradient, Sums<double>* parts) {
  using C = Compute<T>;
  const Piece<kPartRows> at(rows, tiles);
  if (at.column >= columns || at.first >= rows) {
    return;
  }
  const C mean = with.mean[at.column];
  const C rstd = with.rstd(at.column);
  parts[at.number * columns + at.column] = sum_runs<C>(at.first, at.end, [&](std::int64_t row) {
    const std::int64_t i = row * columns + at.column;
    const C g = gradient[i];
    return Sums<C>{g, g * ((value_of(x[i]) - mean) * rstd)};
  });
}

/// One thread for each column: adds the parts in order.
template <typename C>
__global__ void add_sums_kernel(std::int64_t parts, std::int64_t columns, const Sums<double>* sums,
                                C* first, C* second) {
  const std::int64_t j = thread_number();
  if (j >= columns) {
    return;
  }
  Sums<double> total{0.0, 0.0};
  for (std::int64_t part = 0; part < parts; ++part) {
    total.first += sums[part * columns + j].first;
    total.second += sums[part * columns + j].second;
  }
  first[j] = static_cast<C>(total.first);
  second[j] = static_cast<C>(total.second);
}

template <typename T>
struct Forward {
  const T* x;
  Columns<T> with;
  const T* weight;
  const T* bias;
  bool relu;

  /// Returns the function that maps an element's index in column j to its result.
  __device__ auto of_column(std::int64_t j) const {
    using C = Compute<T>;
    return [from = x, rectifies = relu, mean = with.mean[j],
            scale = with.rstd(j) * value_of(weight[j]),
            offset = value_of(bias[j])](std::int64_t i) -> C {
      const C value = (value_of(from[i]) - mean) * scale + offset;
      return rectifies && value < C{0} ? C{0} : value;
    };
  }
};

template <typename T>
struct BackwardInput {
  const T* x;
  Columns<T> with;
  const T* weight;
  Gradient<T> gradient;
  const Compute<T>* dweight;
  const Compute<T>* dbias;
  double rows;

  __device__ auto of_column(std::int64_t j) const {
    using C = Compute<T>;
    const C rstd = with.rstd(j);
    return [from = x, g = gradient, mean = with.mean[j], scale = rstd * value_of(weight[j]),
            level = static_cast<C>(static_cast<double>(dbias[j]) / rows),
            slope = static_cast<C>(static_cast<double>(dweight[j]) / rows *
                                   static_cast<double>(rstd))](std::int64_t i) -> C {
      const C centred = value_of(from[i]) - mean;
      return scale * (g[i] - level - centred * slope);
    };
  }
};

/// to[i] = function of element i; may be in place.
template <typename T, typename Function>
__global__ void __launch_bounds__(kThreads)
    map_columns_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles,
                       Function function, T* to) {
  const Piece<kRunRows> at(rows, tiles);
  if (at.column >= columns || at.first >= rows) {
    return;
  }
  const auto result = function.of_column(at.column);
  // All loads precede the first store, so that no load waits.
  Compute<T> values[kRunRows] = {};
#pragma unroll
  for (int i = 0; i < kRunRows; ++i) {
    if (at.first + i < at.end) {
      values[i] = result((at.first + i) * columns + at.column);
    }
  }
#pragma unroll
  for (int i = 0; i < kRunRows; ++i) {
    if (at.first + i < at.end) {
      to[(at.first + i) * columns + at.column] = to_storage<T>(values[i]);
    }
  }
}

template <typename T, typename Function>
void map_columns(Context& context, const char* name, const Rows& shape, const Function& function,
                 T* to) {
  launch_pieces<kRunRows>(context, name, shape, map_columns_kernel<T, Function>, function, to);
}

/// Means over parts, with scratch for the sums.
template <typename C>
struct PartMeans {
  PartMeans(Context& context, std::span<const ReductionStep> additions, std::int64_t part_count,
            std::int64_t column_count)
      : parts(part_count),
        columns(column_count),
        step_count(static_cast<std::int64_t>(additions.size())) {
    steps = additions_of(context, additions);
    values = scratch_of<C>(context, parts * columns);
  }

  /// The mean of value(part) over all parts, by one thread for each column.
  template <typename Value>
  __device__ C operator()(std::int64_t j, const Value& value) const {
    for (std::int64_t part = 0; part < parts; ++part) {
      values[part * columns + j] = value(part);
    }
    for (std::int64_t step = 0; step < step_count; ++step) {
      values[steps[step].into * columns + j] += values[steps[step].from * columns + j];
    }
    return values[j] / static_cast<C>(parts);
  }

  std::int64_t parts;
  std::int64_t columns;
  std::int64_t step_count;
  const ReductionStep* steps;
  C* values;  ///< parts x columns
};

/// One thread for each column.
template <typename C>
__global__ void combine_kernel(PartMeans<C> mean_of, const C* parts, C* means, C* variances) {
  const std::int64_t columns = mean_of.columns;
  const std::int64_t j = thread_number();
  if (j >= columns) {
    return;
  }
  const C center = mean_of(j, [=](std::int64_t part) { return parts[part * 2 * columns + j]; });
  means[j] = center;
  variances[j] = mean_of(j, [=](std::int64_t part) {
    const C distance = parts[part * 2 * columns + j] - center;
    return parts[(part * 2 + 1) * columns + j] + distance * distance;
  });
}

/// One thread for each column.
template <typename C>
__global__ void mean_kernel(PartMeans<C> mean_of, const C* parts, C* means) {
  const std::int64_t columns = mean_of.columns;
  const std::int64_t j = thread_number();
  if (j < columns) {
    means[j] = mean_of(j, [=](std::int64_t part) { return parts[part * columns + j]; });
  }
}

}  // namespace

void column_statistics(Context& context, const ConstTensorView& x, const TensorView& mean,
                       const TensorView& variance) {
  const Rows shape = rows_of(x.shape());
  auto* const parts =
      scratch_of<Sums<double>>(context, count_of(shape.rows, kPartRows) * shape.columns);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    launch_pieces<kPartRows>(context, "column_statistics", shape, statistics_kernel<T>,
                             x.device<T>(), parts);
    launch(context, "joining statistics", grid_of(shape.columns), join_statistics_kernel<C>,
           shape.rows, shape.columns, parts, mean.device<C>(), variance.device<C>());
  });
}

void combine_statistics(Context& context, std::span<const ReductionStep> steps,
                        const ConstTensorView& parts, const TensorView& mean,
                        const TensorView& variance) {
  with_floating(mean.dtype(), [&]<typename C>(C) {
    const PartMeans<C> mean_of(context, steps, parts.shape()[0], mean.count());
    launch(context, "combine_statistics", grid_of(mean.count()), combine_kernel<C>, mean_of,
           parts.device<C>(), mean.device<C>(), variance.device<C>());
  });
}

void mean_of_parts(Context& context, std::span<const ReductionStep> steps,
                   const ConstTensorView& parts, const TensorView& mean) {
  with_floating(mean.dtype(), [&]<typename C>(C) {
    const PartMeans<C> mean_of(context, steps, parts.shape()[0], mean.count());
    launch(context, "mean_of_parts", grid_of(mean.count()), mean_kernel<C>, mean_of,
           parts.device<C>(), mean.device<C>());
  });
}

void batch_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& mean,
                        const ConstTensorView& variance, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, Activation activation,
                        const TensorView& y) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    const Columns<T> with{Statistic<T>(mean), Statistic<T>(variance), epsilon};
    map_columns(context, "batch_norm_forward", rows_of(x.shape()),
                Forward<T>{x.device<T>(), with, weight.device<T>(), bias.device<T>(),
                           activation == Activation::kRelu},
                y.device<T>());
  });
}

void batch_norm_backward_sums(Context& context, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& variance,
                              double epsilon, const ConstTensorView& y, const ConstTensorView& dy,
                              const TensorView& dweight, const TensorView& dbias) {
  const Rows shape = rows_of(x.shape());
  const std::int64_t parts = count_of(shape.rows, kPartRows);
  auto* const sums = scratch_of<Sums<double>>(context, parts * shape.columns);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const Columns<T> with{Statistic<T>(mean), Statistic<T>(variance), epsilon};
    launch_pieces<kPartRows>(context, "batch_norm_backward_sums", shape, gradient_sums_kernel<T>,
                             x.device<T>(), with, Gradient<T>{device_or_null<T>(y), dy.device<T>()},
                             sums);
    launch(context, "adding batch norm's sums", grid_of(shape.columns), add_sums_kernel<C>, parts,
           shape.columns, sums, dbias.device<C>(), dweight.device<C>());
  });
}

void batch_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& mean, const ConstTensorView& variance,
                               const ConstTensorView& weight, double epsilon,
                               const ConstTensorView& y, const ConstTensorView& dy,
                               const ConstTensorView& dweight, const ConstTensorView& dbias,
                               const TensorView& dx) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const Columns<T> with{Statistic<T>(mean), Statistic<T>(variance), epsilon};
    const Gradient<T> gradient{device_or_null<T>(y), dy.device<T>()};
    map_columns(
        context, "batch_norm_backward_input", shape,
        BackwardInput<T>{x.device<T>(), with, weight.device<T>(), gradient, dweight.device<C>(),
                         dbias.device<C>(), static_cast<double>(shape.rows)},
        dx.device<T>());
  });
}

}  // namespace strata::ops::cuda
