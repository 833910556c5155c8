#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/ops/loss.hpp"
#include "strata/train/plan.hpp"
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
/// changes (design law 1). `losses` holds one entry a microbatch on the last stage and nothing
/// elsewhere. Communication: one all-gather over the data group and one over the pipeline group.
[[nodiscard]] StepSummary summarise_step(ops::Context& context, const Plan& plan,
                                         const RankPlan& rank, comm::Groups& groups,
                                         const RankState& state,
                                         std::span<const ops::LossSums> losses,
                                         const ConstTensorView& gradients, StopRequest stop);

}  // namespace strata::train
