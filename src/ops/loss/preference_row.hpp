#pragma once

#include <cmath>
#include <cstdint>

#include "strata/ops/preference_loss.hpp"

#include "loss/row_loss.hpp"

// What the preference loss on the CPU and on GPUs shares.
namespace strata::ops {

/// The log-likelihood of a row's target, counted as less than 0 for the rejected document.
/// part(shard, value) reads a value of a shard.
template <typename Part>
constexpr double signed_likelihood(std::int64_t shards, const Part& part, double log_sum,
                                   bool rejected) {
  double target = 0.0;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    target += part(shard, kTarget);  // all but one are 0
  }
  return rejected ? log_sum - target : target - log_sum;
}

/// -log(sigmoid(margin)), without overflow.
template <typename Real>
constexpr Real preference_loss_of(Real margin) {
  return std::log1p(std::exp(-std::fabs(margin))) + (margin < Real{0} ? -margin : Real{0});
}

/// sigmoid(-margin).
template <typename Real>
constexpr Real preference_weight(Real margin) {
  const Real power = std::exp(-std::fabs(margin));
  return (margin < Real{0} ? Real{1} : power) / (Real{1} + power);
}

/// Writes the loss of so many pairs, as preference_loss() lists them; what `sums` says of bad
/// targets stays.
template <typename Real>
constexpr void add_pairs(std::int64_t valid, const Real* pairs, LossSums& sums) {
  sums.loss = 0.0;
  sums.correct = 0;
  sums.counted = valid;
  for (std::int64_t sample = 0; sample < valid; ++sample) {
    const Real margin = pairs[sample * kPairElements + 1];
    sums.loss += preference_loss_of(margin);
    sums.correct += margin > Real{0} ? 1 : 0;
  }
}

}  // namespace strata::ops
