#include "strata/pipeline/schedule.hpp"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "strata/core/error.hpp"
#include "strata/pipeline/simulator.hpp"

#include "player.hpp"

namespace strata::pipeline {
namespace {

// The neighbour that `position` exchanges messages with: none at the end of the chain, or where the
// neighbour is on the same stage.
std::optional<StageChunk> remote(std::optional<StageChunk> neighbour, const StageChunk& position) {
  return neighbour && neighbour->stage != position.stage ? neighbour : std::nullopt;
}

}  // namespace

ChunkOrder::ChunkOrder(std::vector<StageChunk> chunks) : chunks_(std::move(chunks)) {
  std::int64_t number = 0;
  for (const StageChunk& position : chunks_) {
    const auto stage = static_cast<std::size_t>(position.stage);
    const auto chunk = static_cast<std::size_t>(position.chunk);
    indices_.resize(std::max(indices_.size(), stage + 1));
    std::vector<std::int64_t>& indices = indices_[stage];
    indices.resize(std::max(indices.size(), chunk + 1), -1);
    require(indices[chunk] < 0, "chunk {} of stage {} runs twice", position.chunk, position.stage);
    indices[chunk] = number++;
  }
}

ChunkOrder ChunkOrder::loop(std::int64_t stages, std::int64_t chunks) {
  std::vector<StageChunk> order;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      order.push_back({.stage = stage, .chunk = chunk});
    }
  }
  return ChunkOrder(std::move(order));
}

ChunkOrder ChunkOrder::v(std::int64_t stages, std::int64_t chunks) {
  std::vector<StageChunk> order = loop(stages, chunks).chunks_;
  for (StageChunk& position : order) {
    if (position.chunk % 2 == 1) {
      position.stage = stages - 1 - position.stage;
    }
  }
  return ChunkOrder(std::move(order));
}

std::int64_t ChunkOrder::index_of(const StageChunk& position) const {
  const auto stage = static_cast<std::size_t>(position.stage);
  const auto chunk = static_cast<std::size_t>(position.chunk);
  const bool known = position.stage >= 0 && stage < indices_.size() && position.chunk >= 0 &&
                     chunk < indices_[stage].size();
  return known ? indices_[stage][chunk] : -1;
}

std::optional<StageChunk> upstream(const Schedule& schedule, const StageChunk& position) {
  const std::int64_t index = schedule.order.index_of(position);
  return index > 0 ? std::optional(schedule.order.chunks()[static_cast<std::size_t>(index - 1)])
                   : std::nullopt;
}

std::optional<StageChunk> downstream(const Schedule& schedule, const StageChunk& position) {
  const auto next = static_cast<std::size_t>(schedule.order.index_of(position) + 1);
  return next > 0 && next < schedule.order.chunks().size()
             ? std::optional(schedule.order.chunks()[next])
             : std::nullopt;
}

StageChunk receiver_of(const Schedule& schedule, std::int64_t stage, const Action& action) {
  const StageChunk here{.stage = stage, .chunk = action.chunk};
  if (!is_send(action.kind)) {
    return here;
  }
  const auto neighbour = action.kind == ActionKind::kSendGradient ? upstream(schedule, here)
                                                                  : downstream(schedule, here);
  return neighbour.value_or(StageChunk{.stage = action.peer, .chunk = action.chunk});
}

Schedule insert_communication(Schedule schedule, nn::BackwardOrder backward) {
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    std::vector<Action>& actions = schedule.stage_actions[static_cast<std::size_t>(stage)];
    const std::vector<Action> list = std::move(actions);
    actions = {};
    const auto weights = std::ranges::count(list, ActionKind::kBackwardWeight, &Action::kind);
    actions.reserve(3 * list.size() - 2 * static_cast<std::size_t>(weights) + 1);
    bool has_gradients = false;
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
      const std::optional<StageChunk> before = remote(upstream(schedule, position), position);
      const std::optional<StageChunk> after = remote(downstream(schedule, position), position);
      switch (action.kind) {
        case ActionKind::kForward:
          exchange(ActionKind::kReceiveActivation, action, before);
          actions.push_back(action);
          exchange(ActionKind::kSendActivation, action, after);
          break;
        case ActionKind::kBackwardInput: {
          exchange(ActionKind::kReceiveGradient, action, after);
          actions.push_back(action);
          const Action weight{.kind = ActionKind::kBackwardWeight,
                              .microbatch = action.microbatch,
                              .chunk = action.chunk};
          if (backward == nn::BackwardOrder::kFused && i + 1 < list.size() &&
              list[i + 1] == weight) {
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

Schedule make_schedule(ScheduleKind kind, const ScheduleSize& size, nn::BackwardOrder backward) {
  return insert_communication(compute_order(kind, size), backward);
}

Schedule with_early_receives(const Schedule& schedule) {
  const Simulation simulation = simulate(schedule, equal_costs(schedule.stages, 1.0, 1.0, 1.0));
  const auto number_of = [&](const TimedAction& timed) {
    return static_cast<std::size_t>(message_number(schedule, timed.stage, timed.action));
  };
  std::vector<double> sent(message_count(schedule));
  std::vector<std::vector<TimedAction>> lists(static_cast<std::size_t>(schedule.stages));
  std::vector<std::vector<TimedAction>> receives(lists.size());
  for (const TimedAction& timed : simulation.actions) {
    const auto stage = static_cast<std::size_t>(timed.stage);
    (is_receive(timed.action.kind) ? receives : lists)[stage].push_back(timed);
    if (is_send(timed.action.kind)) {
      sent[number_of(timed)] = timed.end_seconds;
    }
  }
  Schedule early = schedule;
  for (std::size_t stage = 0; stage < lists.size(); ++stage) {
    std::vector<TimedAction>& waiting = receives[stage];
    const auto sent_at = [&](const TimedAction& timed) { return sent[number_of(timed)]; };
    std::ranges::stable_sort(waiting, {}, sent_at);
    std::vector<Action>& actions = early.stage_actions[stage];
    actions.clear();
    auto next = waiting.begin();
    for (const TimedAction& timed : lists[stage]) {
      // Behind the sends of the action before.
      const bool computes = !is_send(timed.action.kind);
      for (; computes && next != waiting.end() && sent_at(*next) <= timed.begin_seconds; ++next) {
        actions.push_back(next->action);
      }
      actions.push_back(timed.action);
    }
  }
  return early;
}

bool defers_weight_gradients(const Schedule& schedule) {
  return std::ranges::any_of(schedule.stage_actions, [](const std::vector<Action>& list) {
    const Action* before = nullptr;
    for (const Action& action : list) {
      if (is_send(action.kind) || is_receive(action.kind)) {
        continue;
      }
      if (action.kind == ActionKind::kBackwardWeight && before != nullptr &&
          (before->kind != ActionKind::kBackwardInput || before->chunk != action.chunk ||
           before->microbatch != action.microbatch)) {
        return true;
      }
      before = &action;
    }
    return false;
  });
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}

bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveActivation || kind == ActionKind::kReceiveGradient;
}

bool is_gradient(ActionKind kind) {
  return kind == ActionKind::kSendGradient || kind == ActionKind::kReceiveGradient;
}

bool is_sharding(ActionKind kind) {
  return kind >= ActionKind::kUnshard;
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
