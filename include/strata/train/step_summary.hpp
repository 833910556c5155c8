#pragma once

#include "strata/comm/groups.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// Whether somebody has asked the run to stop.
enum class StopRequest { kNone, kStop };

/// What all ranks know of a step after its backward pass.
struct StepSummary {
  double loss = 0.0;       ///< mean over the global batch
  double grad_norm = 0.0;  ///< of the mean loss's gradient, over all tensors
  StopRequest stop = StopRequest::kNone;
  double communication_seconds = 0.0;  ///< spent in the exchange
};

/// Brings together losses, gradient norms and stop requests of all ranks, in an order that no grid
/// changes (design law 1). Here the host waits for its device, once a step. Pre: the reducer has
/// the step's gradients. Communication: one all-gather over the data group and one over the
/// pipeline group. Throws: Error(kData) that names a target which the model has no output for.
[[nodiscard]] StepSummary summarize_step(const plan::Plan& plan, const plan::RankPlan& rank,
                                         comm::Groups& groups, RankState& state, StopRequest stop);

}  // namespace strata::train
