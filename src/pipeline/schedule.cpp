#include "strata/pipeline/schedule.hpp"

#include <fmt/core.h>

#include "strata/core/error.hpp"

namespace strata::pipeline {
namespace {

// The neighbour that `position` exchanges messages with: none at the end of the chain, or where the
// neighbour is on the same stage.
std::optional<StageChunk> remote(std::optional<StageChunk> neighbour, const StageChunk& position) {
  return neighbour && neighbour->stage != position.stage ? neighbour : std::nullopt;
}

/// The forward after the backward pass at `i`; the list's size where another backward comes first.
std::size_t next_forward(const std::vector<Action>& list, std::size_t i) {
  ++i;
  while (i < list.size() && list[i].kind == ActionKind::kBackwardWeight) {
    ++i;
  }
  return i < list.size() && list[i].kind == ActionKind::kForward ? i : list.size();
}

}  // namespace

std::optional<StageChunk> upstream(const Schedule& schedule, const StageChunk& position) {
  const bool backwards = schedule.placement == Placement::kV && position.chunk % 2 == 1;
  const std::int64_t first = backwards ? schedule.stages - 1 : 0;
  if (position.stage != first) {
    return StageChunk{.stage = position.stage + (backwards ? 1 : -1), .chunk = position.chunk};
  }
  if (position.chunk == 0) {
    return std::nullopt;
  }
  const std::int64_t last_before =
      schedule.placement == Placement::kV ? position.stage : schedule.stages - 1;
  return StageChunk{.stage = last_before, .chunk = position.chunk - 1};
}

std::optional<StageChunk> downstream(const Schedule& schedule, const StageChunk& position) {
  const bool backwards = schedule.placement == Placement::kV && position.chunk % 2 == 1;
  const std::int64_t last = backwards ? 0 : schedule.stages - 1;
  if (position.stage != last) {
    return StageChunk{.stage = position.stage + (backwards ? -1 : 1), .chunk = position.chunk};
  }
  if (position.chunk + 1 == schedule.chunks) {
    return std::nullopt;
  }
  return StageChunk{.stage = schedule.placement == Placement::kV ? position.stage : 0,
                    .chunk = position.chunk + 1};
}

Schedule insert_communication(const Schedule& computed, Backward backward) {
  Schedule schedule = computed;
  for (std::int64_t stage = 0; stage < computed.stages; ++stage) {
    std::vector<Action>& actions = schedule.stage_actions[static_cast<std::size_t>(stage)];
    const auto& list = computed.stage_actions[static_cast<std::size_t>(stage)];
    actions.clear();
    bool has_gradients = false;
    std::size_t received = list.size();  // the forward whose activation is received already
    const auto exchange = [&](ActionKind kind, const Action& action,
                              const std::optional<StageChunk>& with) {
      if (with) {
        actions.push_back({.kind = kind,
                           .microbatch = action.microbatch,
                           .chunk = action.chunk,
                           .peer = with->stage});
      }
    };
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action& action = list[i];
      const StageChunk position{.stage = stage, .chunk = action.chunk};
      const std::optional<StageChunk> before = remote(upstream(computed, position), position);
      const std::optional<StageChunk> after = remote(downstream(computed, position), position);
      switch (action.kind) {
        case ActionKind::kForward:
          if (received != i) {
            exchange(ActionKind::kReceiveActivation, action, before);
          }
          actions.push_back(action);
          exchange(ActionKind::kSendActivation, action, after);
          break;
        case ActionKind::kBackwardInput: {
          // A stage of zb-h2 is two forwards ahead of the next: the next receives one of them
          // before its backward pass, so that a host that waits for its sends gets through its
          // warm-up.
          received = computed.kind == ScheduleKind::kZbH2 ? next_forward(list, i) : list.size();
          if (received < list.size()) {
            exchange(ActionKind::kReceiveActivation, list[received], before);
          }
          exchange(ActionKind::kReceiveGradient, action, after);
          actions.push_back(action);
          const Action weight{.kind = ActionKind::kBackwardWeight,
                              .microbatch = action.microbatch,
                              .chunk = action.chunk};
          if (backward == Backward::kFused && i + 1 < list.size() && list[i + 1] == weight) {
            actions.push_back(list[++i]);
            has_gradients = true;
          }
          exchange(ActionKind::kSendGradient, action, before);
          break;
        }
        case ActionKind::kBackwardWeight:
          actions.push_back(action);
          has_gradients = true;
          break;
        default:
          require(false, "stage {} has {}, but communication is inserted into compute actions only",
                  stage, text_of(action));
      }
    }
    if (has_gradients) {
      actions.push_back({.kind = ActionKind::kReduce});
    }
  }
  return schedule;
}

Schedule make_schedule(ScheduleKind kind, const ScheduleSize& size, Backward backward) {
  return insert_communication(compute_order(kind, size), backward);
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}

bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveActivation || kind == ActionKind::kReceiveGradient;
}

std::string text_of(const Action& action) {
  std::string text(name_of(action.kind));
  if (action.kind == ActionKind::kReduce) {
    return text;
  }
  text += fmt::format(" of microbatch {}", action.microbatch);
  if (action.chunk > 0) {
    text += fmt::format(" (chunk {})", action.chunk);
  }
  if (is_send(action.kind) || is_receive(action.kind)) {
    text += fmt::format(" {} stage {}", is_send(action.kind) ? "to" : "from", action.peer);
  }
  return text;
}

}  // namespace strata::pipeline
