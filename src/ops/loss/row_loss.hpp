#pragma once

#include <cmath>
#include <cstdint>

#include "strata/core/reduction_step.hpp"
#include "strata/ops/loss.hpp"

// What the losses on the CPU and on GPUs share.
namespace strata::ops {

/// What a row adds to LossSums.
struct RowLoss {
  double loss = 0.0;
  std::int64_t correct = 0;  ///< 1 where the prediction is correct
};

constexpr bool is_target(std::int64_t target, std::int64_t classes) {
  return target >= 0 && target < classes;
}
constexpr bool is_bad_target(std::int64_t target, std::int64_t classes) {
  return target != kUncounted && !is_target(target, classes);
}

/// Indices of a shard's values for a row (kCrossEntropyParts), as split_cross_entropy.hpp lists
/// them.
inline constexpr std::int64_t kLargest = 0;
inline constexpr std::int64_t kSum = 1;
inline constexpr std::int64_t kTarget = 2;
inline constexpr std::int64_t kIsFirst = 3;
inline constexpr std::int64_t kLogits = 4;  ///< of kSmoothedParts

/// A row's gradient is scale (factor(log_sum) exp(logit - log_sum) - less), `less` of the target or
/// of the others.
template <typename T>
struct GradientTerms {
  T twice_z_loss;
  T target;
  T others;

  GradientTerms(const LossTerms& terms, std::int64_t vocabulary)
      : twice_z_loss(static_cast<T>(2.0 * terms.z_loss)),
        target(static_cast<T>(1.0 - terms.label_smoothing +
                              terms.label_smoothing / static_cast<double>(vocabulary))),
        others(static_cast<T>(terms.label_smoothing / static_cast<double>(vocabulary))) {}

  [[nodiscard]] constexpr T factor(T log_sum) const {
    return twice_z_loss > T{0} ? T{1} + twice_z_loss * log_sum : T{1};
  }
};

/// The cross-entropy of one row over all shards.
struct CombinedRow {
  double log_sum = 0.0;
  RowLoss loss;
};

/// Combines the shards of one row. part(shard, value) reads a value of a shard; total(shard) is
/// scratch, one double for each shard, in which `steps` add up.
template <typename Part, typename Total>
constexpr CombinedRow combine_row(std::int64_t shards, const ReductionStep* steps,
                                  std::int64_t step_count, const Part& part, const Total& total,
                                  const LossTerms& terms, std::int64_t vocabulary) {
  double largest = part(0, kLargest);
  double target = 0.0;
  bool is_correct = false;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    if (shard == 0 || part(shard, kLargest) > largest) {
      largest = part(shard, kLargest);
      is_correct = part(shard, kIsFirst) != 0.0;
    }
    target += part(shard, kTarget);  // all but one are 0
  }
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    total(shard) = part(shard, kSum) * std::exp(part(shard, kLargest) - largest);
  }
  for (std::int64_t step = 0; step < step_count; ++step) {
    total(steps[step].into) += total(steps[step].from);
  }
  const double below = std::log(total(0));
  const bool is_number = below == below;
  const double log_sum = largest + below;
  double loss = largest - target + below;
  if (terms.label_smoothing > 0.0) {
    double logits = 0.0;
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      logits += part(shard, kLogits);
    }
    loss += terms.label_smoothing * (target - logits / static_cast<double>(vocabulary));
  }
  if (terms.z_loss > 0.0) {
    loss += terms.z_loss * log_sum * log_sum;
  }
  return {log_sum, {loss, is_correct && is_number ? 1 : 0}};
}

}  // namespace strata::ops
