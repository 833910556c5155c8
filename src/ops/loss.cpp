#include "strata/ops/loss.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "lanes.hpp"
#include "math.hpp"

namespace strata::ops {
namespace {

/// What a row gives to LossSums.
struct RowLoss {
  double loss = 0.0;
  std::int64_t correct = 0;
};

LossSums sum_of(const std::vector<RowLoss>& rows) {
  LossSums sums;
  for (const RowLoss& row : rows) {
    sums.loss += row.loss;
    sums.correct += row.correct;
  }
  return sums;
}

void check_labels(std::span<const std::int64_t> labels, std::int64_t classes) {
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0 || labels[row] >= classes) {
      fail(ExitCode::kData,
           "row {} of a microbatch has the label {}, the model has {} outputs and so takes 0 to "
           "{}; correct the data or the last layer's size",
           row, labels[row], classes, classes - 1);
    }
  }
}

/// `gradient` may be null, or the logits themselves.
template <typename T>
RowLoss cross_entropy_row(const T* logits, std::int64_t classes, std::int64_t label, T scale,
                          T* gradient) {
  const T largest = lane_max<T>(classes, [=](std::int64_t i) { return logits[i]; });
  const double below = static_cast<double>(largest) - static_cast<double>(logits[label]);
  RowLoss result;
  result.correct = std::find(logits, logits + classes, largest) - logits == label ? 1 : 0;
  if (gradient == nullptr) {
    result.loss = below + std::log(lane_sum<T>(classes, [=](std::int64_t i) {
                    return fast_exp(logits[i] - largest);
                  }));
    return result;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < classes; ++i) {
    gradient[i] = fast_exp(logits[i] - largest);
  }
  const double sum = lane_sum<T>(classes, [=](std::int64_t i) { return gradient[i]; });
  result.loss = below + std::log(sum);
  const T factor = static_cast<T>(static_cast<double>(scale) / sum);
#pragma omp simd
  for (std::int64_t i = 0; i < classes; ++i) {
    gradient[i] *= factor;
  }
  gradient[label] -= scale;
  return result;
}

/// `gradient` may be null.
template <typename T>
double squared_error_row(const T* prediction, const T* target, std::int64_t outputs, T factor,
                         T* gradient) {
  const double sum = lane_sum<double>(outputs, [=](std::int64_t i) {
    const double difference = static_cast<double>(prediction[i]) - static_cast<double>(target[i]);
    return difference * difference;
  });
  if (gradient != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < outputs; ++i) {
      gradient[i] = (prediction[i] - target[i]) * factor;
    }
  }
  return sum / static_cast<double>(outputs);
}

}  // namespace

LossSums cross_entropy(Context& context, const ConstTensorView& logits,
                       const ConstTensorView& labels, std::int64_t valid_rows,
                       double gradient_scale, const TensorView& dlogits) {
  const auto [rows, classes] = rows_of(logits.shape());
  require_count(labels, DType::kInt64, rows, "cross-entropy's labels");
  require(valid_rows >= 0 && valid_rows <= rows, "{} valid rows of {}", valid_rows, rows);
  if (!dlogits.empty()) {
    require_like(dlogits, logits.dtype(), logits.shape(), "cross-entropy's dlogits");
  }
  const auto label = labels.host<std::int64_t>();
  check_labels(label.first(static_cast<std::size_t>(valid_rows)), classes);
  std::vector<RowLoss> row_losses(static_cast<std::size_t>(rows));
  with_floating(logits.dtype(), [&, rows = rows, n = classes]<typename T>(T) {
    const T* from = logits.host<T>().data();
    T* gradient = dlogits.empty() ? nullptr : dlogits.host<T>().data();
    const T scale = static_cast<T>(gradient_scale);
    parallel_for(context, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const row_gradient = gradient == nullptr ? nullptr : gradient + row * n;
        if (row < valid_rows) {
          const auto index = static_cast<std::size_t>(row);
          row_losses[index] =
              cross_entropy_row(from + row * n, n, label[index], scale, row_gradient);
        } else if (row_gradient != nullptr) {
          std::fill_n(row_gradient, n, T{0});
        }
      }
    });
  });
  return sum_of(row_losses);
}

LossSums mean_squared_error(Context& context, const ConstTensorView& prediction,
                            const ConstTensorView& target, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dprediction) {
  require(prediction.shape().rank() >= 1, "a squared error of a scalar");
  require_like(target, prediction.dtype(), prediction.shape(), "squared error's target");
  const std::int64_t rows = prediction.shape()[0];
  require(valid_rows >= 0 && valid_rows <= rows, "{} valid rows of {}", valid_rows, rows);
  if (!dprediction.empty()) {
    require_like(dprediction, prediction.dtype(), prediction.shape(),
                 "squared error's dprediction");
  }
  const std::int64_t n = rows == 0 ? 0 : prediction.count() / rows;
  std::vector<RowLoss> row_losses(static_cast<std::size_t>(rows));
  with_floating(prediction.dtype(), [&]<typename T>(T) {
    const T* from = prediction.host<T>().data();
    const T* wanted = target.host<T>().data();
    T* gradient = dprediction.empty() ? nullptr : dprediction.host<T>().data();
    const T factor = static_cast<T>(gradient_scale * 2.0 / static_cast<double>(n));
    parallel_for(context, rows, row_grain(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const row_gradient = gradient == nullptr ? nullptr : gradient + row * n;
        if (row < valid_rows) {
          row_losses[static_cast<std::size_t>(row)].loss =
              squared_error_row(from + row * n, wanted + row * n, n, factor, row_gradient);
        } else if (row_gradient != nullptr) {
          std::fill_n(row_gradient, n, T{0});
        }
      }
    });
  });
  return sum_of(row_losses);
}

}  // namespace strata::ops
