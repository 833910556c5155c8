#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/optim/gradient_norm.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/receipts.hpp"

namespace strata::train {

/// What ranks ask for at the end of a step. What one rank asks for, all ranks do.
enum class StepRequest : unsigned {
  kStop = 1,
  kSave = 2,
  kCheck = 8,    ///< compare the replicas after the update
  kTimes = 16,   ///< gather the ranks' compute times
  kRepeat = 32,  ///< compute the next step on other lanes too
  kWait = 4,     ///< with the next phase of the save under way: a thread still writes
  kEvaluate = 64,
};

/// A set of requests.
class StepRequests {
 public:
  void add(StepRequest request) { bits_ |= static_cast<unsigned>(request); }
  void add(StepRequests others) { bits_ |= others.bits_; }
  [[nodiscard]] bool has(StepRequest request) const {
    return (bits_ & static_cast<unsigned>(request)) != 0;
  }

  /// As a number for an exchange of numbers.
  [[nodiscard]] double encoded() const { return bits_; }
  void add_encoded(double number) { bits_ |= static_cast<unsigned>(number); }

 private:
  unsigned bits_ = 0;
};

/// The results of a step's backward pass, equal on all ranks.
struct StepSummary {
  double loss = 0.0;       ///< mean over the counted targets of the global batch
  double grad_norm = 0.0;  ///< of the mean loss's gradient, over all tensors
  /// Of the batch's targets, those that count. Sums of gradients are divided by the number of all.
  double counted_share = 1.0;
  /// Of pairs of answers: the share with a positive margin, and the mean margin.
  double accuracy = 0.0;
  double margin = 0.0;
  /// Of each data set of a mixture; where the loss is known of single samples.
  std::vector<nn::MicrobatchLoss::Sample> sets;
  StepRequests requests;
  std::optional<StepDigests> digests;  ///< over all ranks; where they were asked for
  comm::ExposedSeconds communication;  ///< spent in the exchange
};

/// What the update multiplies the sums of gradients by, with the norm clipped to `clip_norm`.
[[nodiscard]] inline double gradient_scale(const StepSummary& summary, double clip_norm) {
  return summary.counted_share > 0.0
             ? optim::clip_scale(summary.grad_norm, clip_norm) / summary.counted_share
             : 0.0;
}

[[nodiscard]] inline bool is_finite(const StepSummary& summary) {
  return std::isfinite(summary.loss) && std::isfinite(summary.grad_norm);
}

/// The data sets of a rank's samples in a step.
struct SampleSets {
  std::int64_t count = 0;  ///< of sets; 0: losses are not told apart
  /// Of each sample, microbatch by microbatch.
  std::vector<std::int64_t> of_samples;
};

/// Reduces losses, gradient norms, requests and, where `part` names whose they are, digests over
/// all ranks, in the same order on every grid (design law 1). `part`: what the names of the tensors
/// begin with (plan::part_prefix). Synchronizes the host with its device, once per step. Pre: the
/// reducer has the step's gradients. Communication: an all-gather over each of the data, tensor and
/// pipeline groups. Throws: Error(kData) that names a target without a model output.
[[nodiscard]] StepSummary summarize_step(const plan::Plan& plan, const plan::RankPlan& rank,
                                         comm::Groups& groups, RankState& state,
                                         StepRequests requests, const SampleSets& sets = {},
                                         const std::optional<std::string>& part = {});

}  // namespace strata::train
