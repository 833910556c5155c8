#pragma once

#include <cstdint>

#include "strata/comm/groups.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// What any rank says at a step's end; all ranks learn the union.
struct StepFlags {
  std::uint8_t bits = 0;

  static constexpr std::uint8_t kStop = 1;     ///< the run was requested to stop
  static constexpr std::uint8_t kWriting = 2;  ///< a thread still writes a checkpoint

  [[nodiscard]] bool has(std::uint8_t flag) const { return (bits & flag) != 0; }
};

/// The results of a step's backward pass, equal on all ranks.
struct StepSummary {
  double loss = 0.0;                   ///< mean over the global batch
  double grad_norm = 0.0;              ///< of the mean loss's gradient, over all tensors
  StepFlags flags;                     ///< of any rank
  double communication_seconds = 0.0;  ///< spent in the exchange
};

/// Reduces losses, gradient norms and flags over all ranks, in the same order on every grid
/// (design law 1). Synchronizes the host with its device, once per step. Pre: the reducer has the
/// step's gradients. Communication: an all-gather over each of the data, tensor and pipeline
/// groups. Throws: Error(kData) that names a target without a model output.
[[nodiscard]] StepSummary summarize_step(const plan::Plan& plan, const plan::RankPlan& rank,
                                         comm::Groups& groups, RankState& state, StepFlags flags);

}  // namespace strata::train
