#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::pipeline {

/// The steps that a stage can take.
enum class ActionKind {
  kForward,
  kBackwardInput,
  kBackwardWeight,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  kReduce  ///< finish the gradient reduction; the last action of a training step
};

/// The orders of compute actions.
enum class ScheduleKind {
  kGpipe,       ///< all forwards, then all backwards
  k1f1b,        ///< forwards until the last stage has begun, then backwards and forwards in turn
  kForwardOnly  ///< evaluation and generation
};

/// No stage: the peer of an action that does not communicate.
inline constexpr std::int64_t kNoPeer = -1;

/// One step of a stage. `chunk` is the stage's own chunk on both sides of a message.
struct Action {
  ActionKind kind = ActionKind::kForward;
  std::int64_t microbatch = 0;
  std::int64_t chunk = 0;
  std::int64_t peer = kNoPeer;

  friend bool operator==(const Action&, const Action&) = default;
};

/// What every stage does in one step, in order: stage_actions[stage].
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

/// Where the input of `place` comes from; nothing for the first layers.
[[nodiscard]] std::optional<StageChunk> upstream(const Schedule& schedule,
                                                 const StageChunk& chunk_of_stage);

/// Where the output of `place` goes; nothing for the last layers.
[[nodiscard]] std::optional<StageChunk> downstream(const Schedule& schedule,
                                                   const StageChunk& chunk_of_stage);

/// The compute actions of every stage, without communication. Backward is two actions, input
/// gradient and then weight gradient; weight gradients ascend by microbatch on every stage,
/// whatever the kind, so that a lane adds its microbatches in order.
/// Pre: stages >= 1, microbatches >= 1.
/// Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B).
[[nodiscard]] Schedule compute_order(ScheduleKind kind, std::int64_t stages,
                                     std::int64_t microbatches);

/// The schedule with its messages: a receive right before the action that needs it, a send right
/// after the action that makes it (the input gradient's before the weight gradient is begun, for
/// the stage upstream waits for it), and one reduce after the last weight gradient.
/// Pre: `computed` holds compute actions only.
[[nodiscard]] Schedule insert_communication(const Schedule& computed);

/// The whole schedule: compute_order with its communication.
/// Pre: stages >= 1, microbatches >= 1.
[[nodiscard]] Schedule make_schedule(ScheduleKind kind, std::int64_t stages,
                                     std::int64_t microbatches);

/// As in "send-activation of microbatch 3 to stage 1".
[[nodiscard]] std::string text_of(const Action& action);

/// Whether the action hands a message to a peer.
[[nodiscard]] bool is_send(ActionKind kind);

/// Whether the action takes a message from a peer.
[[nodiscard]] bool is_receive(ActionKind kind);

}  // namespace strata::pipeline

namespace strata {
template <>
struct EnumNames<pipeline::ActionKind> {
  static constexpr std::array<std::pair<pipeline::ActionKind, std::string_view>, 8> kTable{
      {{pipeline::ActionKind::kForward, "forward"},
       {pipeline::ActionKind::kBackwardInput, "backward-input"},
       {pipeline::ActionKind::kBackwardWeight, "backward-weight"},
       {pipeline::ActionKind::kSendActivation, "send-activation"},
       {pipeline::ActionKind::kReceiveActivation, "receive-activation"},
       {pipeline::ActionKind::kSendGradient, "send-gradient"},
       {pipeline::ActionKind::kReceiveGradient, "receive-gradient"},
       {pipeline::ActionKind::kReduce, "reduce"}}};
};

template <>
struct EnumNames<pipeline::ScheduleKind> {
  static constexpr std::array<std::pair<pipeline::ScheduleKind, std::string_view>, 3> kTable{
      {{pipeline::ScheduleKind::kGpipe, "gpipe"},
       {pipeline::ScheduleKind::k1f1b, "1f1b"},
       {pipeline::ScheduleKind::kForwardOnly, "forward"}}};
};
}  // namespace strata
