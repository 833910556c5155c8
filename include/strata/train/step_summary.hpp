#pragma once

#include "strata/comm/groups.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// Whether the run was requested to stop.
enum class StopRequest { kNone, kStop };

/// The results of a step's backward pass, equal on all ranks.
struct StepSummary {
  double loss = 0.0;       ///< mean over the global batch
  double grad_norm = 0.0;  ///< of the mean loss's gradient, over all tensors
  StopRequest stop = StopRequest::kNone;
  double communication_seconds = 0.0;  ///< spent in the exchange
};

/// Reduces losses, gradient norms and stop requests over all ranks, in the same order on every grid
/// (design law 1). Synchronizes the host with its device, once per step. Pre: the reducer has the
/// step's gradients. Communication: an all-gather over each of the data, tensor and pipeline
/// groups. Throws: Error(kData) that names a target without a model output.
[[nodiscard]] StepSummary summarize_step(const plan::Plan& plan, const plan::RankPlan& rank,
                                         comm::Groups& groups, RankState& state, StopRequest stop);

}  // namespace strata::train
