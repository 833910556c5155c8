#include "strata/ops/loss.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "cuda/rows.hpp"
#include "loss/cuda_loss.hpp"

namespace strata::ops::cuda {
namespace {

/// gradient may be null, or the logits themselves.
template <typename T>
struct CrossEntropy {
  const T* logits;
  const std::int64_t* labels;
  std::int64_t classes;
  std::int64_t valid_rows;
  Compute<T> scale;
  T* gradient;
  RowLoss* losses;

  __device__ void operator()(const auto& threads, std::int64_t row) const {
    using C = Compute<T>;
    const T* const x = logits + row * classes;
    T* const to = gradient == nullptr ? nullptr : gradient + row * classes;
    const std::int64_t label = row < valid_rows ? labels[row] : 0;
    if (row >= valid_rows || !is_target(label, classes)) {
      if (threads.lane == 0) {
        losses[row] = {0.0, 0};
      }
      if (to != nullptr) {
        map_row(threads, x, to, classes, [](int, C) { return C{0}; });
      }
      return;
    }
    // Loaded before any thread writes the gradient, which may alias the logits.
    const C at_label = value_of(x[label]);
    const RowPeak<C> peak = peak_of(threads, x, classes);
    if (threads.lane == 0) {
      const double below = static_cast<double>(peak.largest) - static_cast<double>(at_label);
      losses[row] = {below + log(peak.sum), peak.first == label ? 1 : 0};
    }
    if (to == nullptr) {
      return;
    }
    // Every lane has loaded the label's logit.
    __syncwarp();
    const C factor = static_cast<C>(static_cast<double>(scale) / peak.sum);
    map_row(threads, x, to, classes, [&](int i, C logit) {
      const C power = exponential(logit - peak.largest) * factor;
      return i == label ? power - scale : power;
    });
  }
};

/// gradient may be null, or the predictions themselves.
template <typename T>
struct SquaredError {
  const T* prediction;
  const T* target;
  std::int64_t outputs;
  std::int64_t valid_rows;
  Compute<T> factor;
  T* gradient;
  RowLoss* losses;
  const double* units;  ///< may be null

  __device__ void operator()(const auto& threads, std::int64_t row) const {
    using C = Compute<T>;
    const std::int64_t first = row * outputs;
    const bool counts = row < valid_rows;
    double part = 0.0;
    threads.for_each(counts ? outputs : 0, [&](std::int64_t i) {
      const double difference = static_cast<double>(value_of(prediction[first + i])) -
                                static_cast<double>(value_of(target[first + i]));
      const double error = units == nullptr ? difference : units[i] * difference;
      part += error * error;
    });
    const double sum = threads.sum(part);
    if (counts && threads.lane == 0) {
      losses[row] = {sum / static_cast<double>(outputs), 0};
    }
    threads.for_each(gradient == nullptr ? 0 : outputs, [&](std::int64_t i) {
      const C difference = value_of(prediction[first + i]) - value_of(target[first + i]);
      gradient[first + i] = to_storage<T>(counts ? difference * factor : C{0});
    });
  }
};

}  // namespace

void cross_entropy(Context& context, const ConstTensorView& logits, const ConstTensorView& labels,
                   std::int64_t valid_rows, double gradient_scale, const TensorView& dlogits,
                   const TensorView& sums, const TensorView& samples) {
  const Rows shape = rows_of(logits.shape());
  const std::int64_t* const label = labels.device<std::int64_t>();
  auto* const losses = scratch_of<RowLoss>(context, shape.rows);
  with_device_type(logits.dtype(), [&]<typename T>(T) {
    for_each_logit_row<T>(context, "cross_entropy", shape,
                          CrossEntropy<T>{logits.device<T>(), label, shape.columns, valid_rows,
                                          static_cast<Compute<T>>(gradient_scale),
                                          device_or_null<T>(dlogits), losses});
  });
  write_sums(context, valid_rows, losses, label, shape.columns, sums);
  write_samples(context, valid_rows, losses, label, shape.columns, shape.rows, samples);
}

void mean_squared_error(Context& context, const ConstTensorView& prediction,
                        const ConstTensorView& target, std::int64_t valid_rows,
                        double gradient_scale, const TensorView& dprediction,
                        const TensorView& sums, const ConstTensorView& units,
                        const TensorView& samples) {
  const std::int64_t rows = prediction.shape()[0];
  const std::int64_t outputs = rows == 0 ? 0 : prediction.count() / rows;
  auto* const losses = scratch_of<RowLoss>(context, rows);
  with_device_type(prediction.dtype(), [&]<typename T>(T) {
    const auto factor =
        static_cast<Compute<T>>(gradient_scale * 2.0 / static_cast<double>(outputs));
    for_each_row(
        context, "mean_squared_error", rows, outputs,
        SquaredError<T>{prediction.device<T>(), target.device<T>(), outputs, valid_rows, factor,
                        device_or_null<T>(dprediction), losses, device_or_null<double>(units)});
  });
  write_sums(context, valid_rows, losses, nullptr, 0, sums);
  write_samples(context, valid_rows, losses, nullptr, 0, rows, samples);
}

}  // namespace strata::ops::cuda
