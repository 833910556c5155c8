#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::pipeline {

/// The actions of a stage.
enum class ActionKind {
  kForward,
  kBackwardInput,
  kBackwardWeight,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  kReduce  ///< finishes the gradient reduction; the last action of a training step
};

constexpr auto enum_names(ActionKind) {
  return names_in_order("forward", "backward-input", "backward-weight", "send-activation",
                        "receive-activation", "send-gradient", "receive-gradient", "reduce");
}

/// The orders of compute actions.
enum class ScheduleKind {
  kGpipe,       ///< all forwards, then all backwards
  k1f1b,        ///< warm-up forwards, then one backward after each forward
  kForwardOnly  ///< evaluation and generation
};

constexpr auto enum_names(ScheduleKind) {
  return names_in_order("gpipe", "1f1b", "forward");
}

/// The peer of an action that does not communicate.
inline constexpr std::int64_t kNoPeer = -1;

/// One action of a stage. `chunk` is the stage's own chunk, on both sides of a message.
struct Action {
  ActionKind kind = ActionKind::kForward;
  std::int64_t microbatch = 0;
  std::int64_t chunk = 0;
  std::int64_t peer = kNoPeer;

  friend bool operator==(const Action&, const Action&) = default;
};

/// The actions of every stage in one step, in order: stage_actions[stage]. The executor runs only
/// schedules of one chunk; checker and simulator also handle more.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kGpipe;
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
  std::int64_t chunks = 1;
  std::vector<std::vector<Action>> stage_actions;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// One chunk of one stage. The layers run through chunk 0 of every stage, then chunk 1, and so on.
struct StageChunk {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;

  friend bool operator==(const StageChunk&, const StageChunk&) = default;
};

/// Where the input of `position` comes from; nothing for the first layers.
[[nodiscard]] std::optional<StageChunk> upstream(const Schedule& schedule,
                                                 const StageChunk& position);

/// Where the output of `position` goes; nothing for the last layers.
[[nodiscard]] std::optional<StageChunk> downstream(const Schedule& schedule,
                                                   const StageChunk& position);

/// The compute actions of every stage, without communication. Backward is two actions, input
/// gradient and then weight gradient. On every stage and in every kind of schedule weight gradients
/// ascend by microbatch, so that a lane accumulates its microbatches in order.
/// Pre: stages >= 1, microbatches >= 1.
/// Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B).
[[nodiscard]] Schedule compute_order(ScheduleKind kind, std::int64_t stages,
                                     std::int64_t microbatches);

/// The schedule with its messages: a receive right before the action that reads it, a send right
/// after the action that computes it, and one reduce after the last weight gradient. The input
/// gradient is sent before the weight gradient begins, because the upstream stage waits for it.
/// Pre: `computed` holds compute actions only.
[[nodiscard]] Schedule insert_communication(const Schedule& computed);

/// The complete schedule: compute_order() with its communication.
/// Pre: stages >= 1, microbatches >= 1.
[[nodiscard]] Schedule make_schedule(ScheduleKind kind, std::int64_t stages,
                                     std::int64_t microbatches);

/// As in "send-activation of microbatch 3 to stage 1".
[[nodiscard]] std::string text_of(const Action& action);

/// Whether the action sends a message.
[[nodiscard]] bool is_send(ActionKind kind);

/// Whether the action receives a message.
[[nodiscard]] bool is_receive(ActionKind kind);

}  // namespace strata::pipeline
