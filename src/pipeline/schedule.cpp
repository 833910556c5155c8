#include "strata/pipeline/schedule.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "strata/core/error.hpp"

namespace strata::pipeline {
namespace {

void append_backward(std::vector<Action>& actions, std::int64_t microbatch) {
  actions.push_back({.kind = ActionKind::kBackwardInput, .microbatch = microbatch});
  actions.push_back({.kind = ActionKind::kBackwardWeight, .microbatch = microbatch});
}

// Forwards in order; the backward of microbatch i follows the forward of microbatch i + `lead`, or
// comes after the last forward.
std::vector<Action> forwards_leading_by(std::int64_t lead, std::int64_t microbatches) {
  std::vector<Action> actions;
  actions.reserve(static_cast<std::size_t>(3 * microbatches));
  for (std::int64_t step = 0; step < microbatches + lead; ++step) {
    if (step < microbatches) {
      actions.push_back({.kind = ActionKind::kForward, .microbatch = step});
    }
    if (step >= lead) {
      append_backward(actions, step - lead);
    }
  }
  return actions;
}

// The neighbour that `position` exchanges messages with: none at the end of the chain, or where the
// neighbour is on the same stage.
std::optional<StageChunk> remote(std::optional<StageChunk> neighbour, const StageChunk& position) {
  return neighbour && neighbour->stage != position.stage ? neighbour : std::nullopt;
}

}  // namespace

std::optional<StageChunk> upstream(const Schedule& schedule, const StageChunk& position) {
  if (position.stage > 0) {
    return StageChunk{.stage = position.stage - 1, .chunk = position.chunk};
  }
  if (position.chunk > 0) {
    return StageChunk{.stage = schedule.stages - 1, .chunk = position.chunk - 1};
  }
  return std::nullopt;
}

std::optional<StageChunk> downstream(const Schedule& schedule, const StageChunk& position) {
  if (position.stage + 1 < schedule.stages) {
    return StageChunk{.stage = position.stage + 1, .chunk = position.chunk};
  }
  if (position.chunk + 1 < schedule.chunks) {
    return StageChunk{.stage = 0, .chunk = position.chunk + 1};
  }
  return std::nullopt;
}

Schedule compute_order(ScheduleKind kind, std::int64_t stages, std::int64_t microbatches) {
  require(stages >= 1 && microbatches >= 1,
          "a schedule needs at least one stage and one microbatch, not {} and {}", stages,
          microbatches);
  Schedule schedule;
  schedule.kind = kind;
  schedule.stages = stages;
  schedule.microbatches = microbatches;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    switch (kind) {
      case ScheduleKind::kGpipe:
        schedule.stage_actions.push_back(forwards_leading_by(microbatches - 1, microbatches));
        break;
      case ScheduleKind::k1f1b:
        schedule.stage_actions.push_back(
            forwards_leading_by(std::min(stages - stage - 1, microbatches - 1), microbatches));
        break;
      case ScheduleKind::kForwardOnly: {
        std::vector<Action>& actions = schedule.stage_actions.emplace_back();
        for (std::int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
          actions.push_back({.kind = ActionKind::kForward, .microbatch = microbatch});
        }
        break;
      }
    }
  }
  return schedule;
}

Schedule insert_communication(const Schedule& computed) {
  Schedule schedule = computed;
  for (std::int64_t stage = 0; stage < computed.stages; ++stage) {
    std::vector<Action>& actions = schedule.stage_actions[static_cast<std::size_t>(stage)];
    actions.clear();
    bool has_gradients = false;
    for (const Action& action : computed.stage_actions[static_cast<std::size_t>(stage)]) {
      const StageChunk position{.stage = stage, .chunk = action.chunk};
      const std::optional<StageChunk> before = remote(upstream(computed, position), position);
      const std::optional<StageChunk> after = remote(downstream(computed, position), position);
      const auto exchange = [&](ActionKind kind, const std::optional<StageChunk>& with) {
        if (with) {
          actions.push_back({.kind = kind,
                             .microbatch = action.microbatch,
                             .chunk = action.chunk,
                             .peer = with->stage});
        }
      };
      switch (action.kind) {
        case ActionKind::kForward:
          exchange(ActionKind::kReceiveActivation, before);
          actions.push_back(action);
          exchange(ActionKind::kSendActivation, after);
          break;
        case ActionKind::kBackwardInput:
          exchange(ActionKind::kReceiveGradient, after);
          actions.push_back(action);
          exchange(ActionKind::kSendGradient, before);
          break;
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

Schedule make_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t microbatches) {
  return insert_communication(compute_order(kind, stages, microbatches));
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
