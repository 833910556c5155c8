#include <algorithm>
#include <optional>

#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"

#include "player.hpp"

// The memory slots that a chunk needs.
namespace strata::pipeline {
namespace {

/// The most microbatches of a chunk that hold a tensor at once. Microbatches ascend in each kind of
/// action.
struct MostHeld {
  std::int64_t activations = 0;  ///< from forward to backward-weight
  std::int64_t inputs = 0;       ///< from receive-activation to backward-weight
  /// From receive-gradient, or else backward-input, until both backward-weight and send-gradient,
  /// or the backward-input of a chunk before it on the same stage.
  std::int64_t gradients = 1;
};

MostHeld most_held(const Schedule& schedule, const StageChunk& position) {
  MostHeld most;
  std::int64_t weights = 0;
  const std::optional<StageChunk> before = upstream(schedule, position);
  std::int64_t sent = before ? 0 : schedule.microbatches;
  for (const Action& action : schedule.stage_actions[static_cast<std::size_t>(position.stage)]) {
    const std::int64_t begun = action.microbatch + 1;
    if (action.kind == ActionKind::kBackwardInput && before &&
        *before == StageChunk{.stage = position.stage, .chunk = action.chunk}) {
      sent = begun;
    }
    if (action.chunk != position.chunk) {
      continue;
    }
    switch (action.kind) {
      case ActionKind::kForward:
        most.activations = std::max(most.activations, begun - weights);
        break;
      case ActionKind::kReceiveActivation:
        most.inputs = std::max(most.inputs, begun - weights);
        break;
      case ActionKind::kReceiveGradient:
      case ActionKind::kBackwardInput:
        most.gradients = std::max(most.gradients, begun - std::min(weights, sent));
        break;
      case ActionKind::kSendGradient:
        sent = begun;
        break;
      case ActionKind::kBackwardWeight:
        weights = begun;
        break;
      default:
        break;
    }
  }
  return most;
}

}  // namespace

nn::StageSlots slots_for(const Schedule& schedule, const StageChunk& position) {
  const MostHeld held = most_held(schedule, position);
  const bool by_formula = schedule.kind != ScheduleKind::kFile && schedule.chunks == 1;
  const std::int64_t live = by_formula ? live_bound(schedule, position.stage) : held.activations;
  const auto remote = [&](const std::optional<StageChunk>& neighbour) {
    return neighbour && neighbour->stage != position.stage;
  };
  const auto before = upstream(schedule, position);
  return {.activations = live,
          .inputs = remote(before)
                        ? std::min(std::max(live + 1, held.inputs), schedule.microbatches)
                    : before ? live
                             : 0,
          .gradients = schedule.order.chunks().size() == 1 ? 1
                       : by_formula || remote(downstream(schedule, position))
                           ? std::min(held.gradients + 1, schedule.microbatches)
                           : held.gradients,
          .losses = schedule.microbatches};
}

std::string training_hang(const Schedule& schedule, device::DeviceKind device) {
  std::vector<std::int64_t> gradient_slots;
  for (const StageChunk& position : schedule.order.chunks()) {
    gradient_slots.push_back(slots_for(schedule, position).gradients);
  }
  const auto hang =
      hang_of(schedule, device == device::DeviceKind::kCuda ? Sends::kHostWaits : Sends::kSlots,
              gradient_slots);
  return hang ? hang->text : "";
}

}  // namespace strata::pipeline
