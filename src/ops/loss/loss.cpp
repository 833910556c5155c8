#include "strata/ops/loss.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "loss/loss_rows.hpp"
#include "observed.hpp"
#include "simd/math.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

/// The first element that is `value`; `count` where none is.
template <typename T>
std::int64_t first_equal(const T* elements, std::int64_t count, Compute<T> value) {
  const T* const end = elements + count;
  return std::find_if(elements, end,
                      [=](T element) { return static_cast<Compute<T>>(element) == value; }) -
         elements;
}

/// `gradient` may be null, or the logits themselves.
template <typename T>
RowLoss cross_entropy_row(const T* logits, std::int64_t classes, std::int64_t label,
                          Compute<T> scale, T* gradient) {
  using C = Compute<T>;
  const auto logit = [=](std::int64_t i) { return static_cast<C>(logits[i]); };
  const C largest = simd_max<C>(classes, logit);
  const auto power = [=](std::int64_t i) { return fast_exp(logit(i) - largest); };
  const double below = static_cast<double>(largest) - static_cast<double>(logit(label));
  const bool is_first = first_equal(logits, classes, largest) == label;
  RowLoss result;
  const auto add_up = [&](double sum) {
    result = {below + std::log(sum), is_first && !std::isnan(sum) ? 1 : 0};
  };
  if (gradient == nullptr) {
    add_up(simd_sum<C>(classes, power));
    return result;
  }
  const C label_power = power(label);
  const auto factor_of = [&](double sum) {
    add_up(sum);
    return static_cast<C>(static_cast<double>(scale) / sum);
  };
  if constexpr (std::is_same_v<T, C>) {
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i) {
      gradient[i] = power(i);
    }
    const C factor = factor_of(simd_sum<C>(classes, [=](std::int64_t i) { return gradient[i]; }));
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i) {
      gradient[i] *= factor;
    }
    gradient[label] -= scale;
  } else {
    // The gradient cannot hold unrounded exponentials, so each is computed twice.
    const C factor = factor_of(simd_sum<C>(classes, power));
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i) {
      gradient[i] = to_storage<T>(power(i) * factor);
    }
    gradient[label] = to_storage<T>(label_power * factor - scale);
  }
  return result;
}

/// `gradient` may be null, and `units` too.
template <typename T>
double squared_error_row(const T* prediction, const T* target, std::int64_t outputs,
                         Compute<T> factor, T* gradient, const double* units) {
  using C = Compute<T>;
  const double sum = simd_sum<double>(outputs, [=](std::int64_t i) {
    const double difference = static_cast<double>(static_cast<C>(prediction[i])) -
                              static_cast<double>(static_cast<C>(target[i]));
    const double error = units == nullptr ? difference : units[i] * difference;
    return error * error;
  });
  if (gradient != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < outputs; ++i) {
      gradient[i] =
          to_storage<T>((static_cast<C>(prediction[i]) - static_cast<C>(target[i])) * factor);
    }
  }
  return sum / static_cast<double>(outputs);
}

}  // namespace

LossSums loss_sums_of(const ConstTensorView& sums) {
  require_count(sums, DType::kInt64, kLossElements, "a loss's sums");
  const std::span<const std::int64_t> from = sums.host<std::int64_t>();
  return {.loss = std::bit_cast<double>(from[0]),
          .correct = from[1],
          .bad_row = from[2],
          .bad_label = from[3],
          .counted = from[4]};
}

void require_labels(const LossSums& sums, std::int64_t classes) {
  if (sums.bad_row >= 0) {
    fail(ExitCode::kData,
         "row {} of a microbatch has the target {}, the model has {} outputs and so takes 0 to {}; "
         "use the data set that the model is for, or correct the size of the last layer or of the "
         "vocabulary",
         sums.bad_row, sums.bad_label, classes, classes - 1);
  }
}

void cross_entropy(Context& context, const ConstTensorView& logits, const ConstTensorView& labels,
                   std::int64_t valid_rows, double gradient_scale, const TensorView& dlogits,
                   const TensorView& sums, const TensorView& samples) {
  const Observed observed(context, "cross_entropy", logits, labels, dlogits, sums);
  const auto [rows, classes] = rows_of(logits.shape());
  require_count(labels, DType::kInt64, rows, "cross-entropy's labels");
  require_count(sums, DType::kInt64, kLossElements, "cross-entropy's sums");
  require_samples(samples, rows);
  require(valid_rows >= 0 && valid_rows <= rows, "{} valid rows of {}", valid_rows, rows);
  if (!dlogits.empty()) {
    require_like(dlogits, logits.dtype(), logits.shape(), "cross-entropy's dlogits");
  }
  if (observed.handled_by<cuda::cross_entropy>(logits, labels, valid_rows, gradient_scale, dlogits,
                                               sums, samples)) {
    return;
  }
  const auto label = labels.host<std::int64_t>().first(static_cast<std::size_t>(valid_rows));
  std::vector<RowLoss> row_losses(static_cast<std::size_t>(rows));
  with_stored(logits.dtype(), [&, rows = rows, n = classes]<typename T>(T) {
    const T* from = logits.host<T>().data();
    T* gradient = host_or_null<T>(dlogits);
    const auto scale = static_cast<Compute<T>>(gradient_scale);
    parallel_for_rows(context, rows, n, [&](std::int64_t row) {
      T* const row_gradient = gradient == nullptr ? nullptr : gradient + row * n;
      const auto index = static_cast<std::size_t>(row);
      if (row < valid_rows && is_target(label[index], n)) {
        row_losses[index] = cross_entropy_row(from + row * n, n, label[index], scale, row_gradient);
      } else if (row_gradient != nullptr) {
        std::fill_n(row_gradient, n, T{});
      }
    });
  });
  write_sums(std::span(row_losses).first(label.size()), label, classes, sums);
  write_samples(std::span(row_losses).first(label.size()), label, classes, rows, samples);
}

void mean_squared_error(Context& context, const ConstTensorView& prediction,
                        const ConstTensorView& target, std::int64_t valid_rows,
                        double gradient_scale, const TensorView& dprediction,
                        const TensorView& sums, const ConstTensorView& units,
                        const TensorView& samples) {
  const Observed observed(context, "mean_squared_error", prediction, target, dprediction, sums);
  require(prediction.shape().rank() >= 1, "a squared error of a scalar");
  require_like(target, prediction.dtype(), prediction.shape(), "squared error's target");
  require_count(sums, DType::kInt64, kLossElements, "squared error's sums");
  const std::int64_t rows = prediction.shape()[0];
  require(valid_rows >= 0 && valid_rows <= rows, "{} valid rows of {}", valid_rows, rows);
  if (!dprediction.empty()) {
    require_like(dprediction, prediction.dtype(), prediction.shape(),
                 "squared error's dprediction");
  }
  const std::int64_t n = rows == 0 ? 0 : prediction.count() / rows;
  if (!units.empty()) {
    require_count(units, DType::kFloat64, n, "squared error's units");
  }
  require_samples(samples, rows);
  if (observed.handled_by<cuda::mean_squared_error>(prediction, target, valid_rows, gradient_scale,
                                                    dprediction, sums, units, samples)) {
    return;
  }
  std::vector<RowLoss> row_losses(static_cast<std::size_t>(rows));
  with_stored(prediction.dtype(), [&]<typename T>(T) {
    const T* from = prediction.host<T>().data();
    const T* wanted = target.host<T>().data();
    T* gradient = host_or_null<T>(dprediction);
    const double* const unit = host_or_null<double>(units);
    const auto factor = static_cast<Compute<T>>(gradient_scale * 2.0 / static_cast<double>(n));
    parallel_for_rows(context, rows, n, [&](std::int64_t row) {
      T* const row_gradient = gradient == nullptr ? nullptr : gradient + row * n;
      if (row < valid_rows) {
        row_losses[static_cast<std::size_t>(row)].loss =
            squared_error_row(from + row * n, wanted + row * n, n, factor, row_gradient, unit);
      } else if (row_gradient != nullptr) {
        std::fill_n(row_gradient, n, T{});
      }
    });
  });
  const auto valid = std::span(row_losses).first(static_cast<std::size_t>(valid_rows));
  write_sums(valid, {}, 0, sums);
  write_samples(valid, {}, 0, rows, samples);
}

}  // namespace strata::ops
