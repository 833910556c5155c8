#include "strata/ops/batch_norm.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/column_sums.hpp"
#include "cuda/columns.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// parts[part, 0, j] = the mean of column j over a part's rows; parts[part, 1, j] = the sum of
/// squared deviations from it.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles, const T* x,
                      double* parts) {
  using C = Compute<T>;
  constexpr int kValues = PartThread<kWidth>::kColumns;
  __shared__ double sums[kRuns * kValues];
  const PartThread<kWidth> at(rows, tiles);
  const int own_rows = at.column < columns ? at.count : 0;
  const double own_count = static_cast<double>(own_rows);
  double means[kWidth] = {};
  double squares[kWidth] = {};
  if (own_rows > 0) {
    const auto row = [&](int i) {
      return elements_at<kWidth>(x + at.row(i) * columns + at.column);
    };
    // Measured from the first row: the squares of a narrow column far from zero lose nothing.
    const Chunk<T, kWidth> centre = row(0);
    C apart[kWidth] = {};
    C square[kWidth] = {};
    const auto add_row = [&](int i) {
      const Chunk<T, kWidth> values = row(i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const C difference = value_of(values.at[j]) - value_of(centre.at[j]);
        apart[j] += difference;
        square[j] = fused(difference, difference, square[j]);
      }
    };
    if (own_rows == kSumRows) {
#pragma unroll
      for (int i = 1; i < kSumRows; ++i) {
        add_row(i);
      }
    } else {
      for (int i = 1; i < own_rows; ++i) {
        add_row(i);
      }
    }
    const double share = 1.0 / own_count;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const auto sum = static_cast<double>(apart[j]);
      means[j] = static_cast<double>(value_of(centre.at[j])) + sum * share;
      squares[j] = static_cast<double>(square[j]) - sum * sum * share;
    }
  }
  const std::int64_t left = rows - at.part * kPartRows;
  const double share = 1.0 / static_cast<double>(left < kPartRows ? left : kPartRows);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    sums[at.template place<kValues>(j)] = own_count * means[j];
  }
  add_runs<kValues>(sums);
  double part_means[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    part_means[j] = sums[j * kColumnThreads + at.lane] * share;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const double apart = means[j] - part_means[j];
    sums[at.template place<kValues>(j)] = squares[j] + own_count * apart * apart;
  }
  add_runs<kValues>(sums);
  if (at.run == 0 && at.column < columns) {
    double* const to = parts + at.part * 2 * columns + at.column;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      to[j] = part_means[j];
      to[columns + j] = sums[j * kColumnThreads + at.lane];
    }
  }
}

/// One block for kColumnThreads columns: combines the parts' statistics.
template <typename C>
__global__ void __launch_bounds__(kThreads)
    join_statistics_kernel(std::int64_t rows, std::int64_t columns, const double* parts, C* means,
                           C* variances) {
  __shared__ double sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnThreads;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + lane;
  const std::int64_t end = j < columns ? count_of(rows, kPartRows) : 0;
  const double count = static_cast<double>(rows);
  const auto rows_of_part = [=](std::int64_t part) {
    const std::int64_t left = rows - part * kPartRows;
    return static_cast<double>(left < kPartRows ? left : kPartRows);
  };
  double sum = 0.0;
#pragma unroll 8
  for (std::int64_t part = thread / kColumnThreads; part < end; part += kRuns) {
    sum += rows_of_part(part) * parts[part * 2 * columns + j];
  }
  sums[thread] = sum;
  add_runs<kColumnThreads>(sums);
  const double centre = sums[lane] / count;
  __syncthreads();
  double squares = 0.0;
#pragma unroll 4
  for (std::int64_t part = thread / kColumnThreads; part < end; part += kRuns) {
    const double apart = parts[part * 2 * columns + j] - centre;
    squares += parts[(part * 2 + 1) * columns + j] + rows_of_part(part) * apart * apart;
  }
  sums[thread] = squares;
  add_runs<kColumnThreads>(sums);
  if (thread < kColumnThreads && j < columns) {
    means[j] = static_cast<C>(centre);
    // Rounding can make the sum of a constant column slightly negative.
    variances[j] = static_cast<C>((sums[lane] < 0.0 ? 0.0 : sums[lane]) / count);
  }
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

  __device__ double unrounded_rstd(std::int64_t j) const {
    return 1.0 / sqrt(static_cast<double>(variance[j]) + epsilon);
  }
  __device__ Compute<T> rstd(std::int64_t j) const {
    return static_cast<Compute<T>>(unrounded_rstd(j));
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

/// g and g (x - mean), where g is the gradient before the activation.
template <typename T, Activation kActivation>
struct GradientTerm {
  static constexpr int kSums = 2;

  const T* x;
  Statistic<T> mean;
  Gradient<T> gradient;
  std::int64_t columns;

  template <int kWidth>
  __device__ auto of_columns(std::int64_t j) const {
    using C = Compute<T>;
    Chunk<C, kWidth> centres;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      centres.at[i] = mean[j + i];
    }
    return [from = x + j, y = gradient.y, dy = gradient.dy + j, n = columns, j, centres](
               std::int64_t row, C* sums) {
      const auto values = elements_at<kWidth>(from + row * n);
      const auto gradients = elements_at<kWidth>(dy + row * n);
      Chunk<T, kWidth> outputs{};
      if constexpr (kActivation == Activation::kRelu) {
        outputs = elements_at<kWidth>(y + row * n + j);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        C g = value_of(gradients.at[i]);
        if (kActivation == Activation::kRelu && value_of(outputs.at[i]) <= C{0}) {
          g = C{0};
        }
        sums[i] += g;
        sums[kWidth + i] += g * (value_of(values.at[i]) - centres.at[i]);
      }
    };
  }
};

/// dbias = the sum of g, dweight = the sum of g xhat.
template <typename T>
struct StoreGradients {
  Columns<T> with;
  Compute<T>* dweight;
  Compute<T>* dbias;

  __device__ void operator()(std::int64_t number, std::int64_t j, double sum) const {
    if (number == 0) {
      dbias[j] = static_cast<Compute<T>>(sum);
    } else {
      dweight[j] = static_cast<Compute<T>>(sum * with.unrounded_rstd(j));
    }
  }
};

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
  const Piece at(rows, tiles);
  if (at.column >= columns || at.first >= rows) {
    return;
  }
  const auto result = function.of_column(at.column);
  // All loads precede the first store, so that no load waits.
  Compute<T> values[kPieceRows] = {};
#pragma unroll
  for (int i = 0; i < kPieceRows; ++i) {
    if (at.first + i < at.end) {
      values[i] = result((at.first + i) * columns + at.column);
    }
  }
#pragma unroll
  for (int i = 0; i < kPieceRows; ++i) {
    if (at.first + i < at.end) {
      to[(at.first + i) * columns + at.column] = to_storage<T>(values[i]);
    }
  }
}

template <typename T, typename Function>
void map_columns(Context& context, const char* name, const Rows& shape, const Function& function,
                 T* to) {
  launch_pieces(context, name, shape, map_columns_kernel<T, Function>, function, to);
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
  const std::int64_t count = count_of(shape.rows, kPartRows);
  double* const parts = scratch_of<double>(context, count * 2 * shape.columns);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.device<T>();
    with_width(
        shape.columns,
        [&](auto width) {
          const std::int64_t tiles = count_of(shape.columns, PartThread<width()>::kColumns);
          launch(context, "column_statistics", {count * tiles, kThreads, 0},
                 statistics_kernel<T, width()>, shape.rows, shape.columns, tiles, from, parts);
        },
        from);
    launch(context, "joining statistics", {count_of(shape.columns, kColumnThreads), kThreads, 0},
           join_statistics_kernel<C>, shape.rows, shape.columns, parts, mean.device<C>(),
           variance.device<C>());
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
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.device<T>();
    const Columns<T> with{Statistic<T>(mean), Statistic<T>(variance), epsilon};
    const Gradient<T> gradient{device_or_null<T>(y), dy.device<T>()};
    const StoreGradients<T> store{with, dweight.device<C>(), dbias.device<C>()};
    const auto sum = [&]<typename Term>(const Term& term) {
      sum_over_rows<C>(context, "batch_norm_backward_sums", shape, term, store, from, gradient.y,
                       gradient.dy);
    };
    if (y.empty()) {
      sum(GradientTerm<T, Activation::kNone>{from, with.mean, gradient, shape.columns});
    } else {
      sum(GradientTerm<T, Activation::kRelu>{from, with.mean, gradient, shape.columns});
    }
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
