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

/// The cross-entropy of one row over all shards.
struct CombinedRow {
  double log_sum = 0.0;
  RowLoss loss;
};

/// Combines the shards of one row. part(shard, value) reads a value of a shard; total(shard) is
/// scratch, one double for each shard, in which `steps` add up.
template <typename Part, typename Total>
constexpr CombinedRow combine_row(std::int64_t shards, const ReductionStep* steps,
                                  std::int64_t step_count, const Part& part, const Total& total) {
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
  return {largest + below, {largest - target + below, is_correct && is_number ? 1 : 0}};
}

}  // namespace strata::ops
