#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/nn/backward_order.hpp"

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
  kReduce,   ///< finishes the gradient reduction; the last action of a training step
  kUnshard,  ///< this and the next two: of files, timed and never run (is_sharding)
  kReshard,
  kReduceGradient
};

constexpr auto enum_names(ActionKind) {
  return names_in_order("forward", "backward-input", "backward-weight", "send-activation",
                        "receive-activation", "send-gradient", "receive-gradient", "reduce",
                        "unshard", "reshard", "reduce-gradient");
}

/// The orders of compute actions.
enum class ScheduleKind {
  kGpipe,        ///< all forwards, then all backwards
  k1f1b,         ///< warm-up forwards, then one backward after each forward
  kInterleaved,  ///< 1f1b with several chunks a stage
  kZbH1,         ///< 1f1b whose weight gradients wait, within the activations of 1f1b's first stage
  kZbH2,         ///< the same with twice the warm-up and up to twice the activations
  kZbV,          ///< two chunks a stage, placed as a V
  kForwardOnly,  ///< evaluation and generation
  kFile          ///< read from a file, or made to measure
};

constexpr auto enum_names(ScheduleKind) {
  return names_in_order("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "forward",
                        "file");
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

/// One chunk of one stage.
struct StageChunk {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;

  friend bool operator==(const StageChunk&, const StageChunk&) = default;
};

/// The chunks of all stages in the order in which the layers run through them.
class ChunkOrder {
 public:
  ChunkOrder() = default;
  /// Pre: no chunk twice.
  explicit ChunkOrder(std::vector<StageChunk> chunks);
  /// Chunk 0 of every stage, then chunk 1 of every stage, and so on.
  [[nodiscard]] static ChunkOrder loop(std::int64_t stages, std::int64_t chunks);
  /// Chunk 0 from the first stage to the last, chunk 1 back to the first, and so on.
  [[nodiscard]] static ChunkOrder v(std::int64_t stages, std::int64_t chunks);

  [[nodiscard]] const std::vector<StageChunk>& chunks() const { return chunks_; }
  /// The chunk's index in chunks(); -1 where it is not there.
  [[nodiscard]] std::int64_t index_of(const StageChunk& position) const;

  friend bool operator==(const ChunkOrder&, const ChunkOrder&) = default;

 private:
  std::vector<StageChunk> chunks_;
  /// By stage, then chunk.
  std::vector<std::vector<std::int64_t>> indices_;
};

/// The most chunks of a stage in training.
inline constexpr std::int64_t kMostChunks = 4;

/// The size of a schedule.
struct ScheduleSize {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
  std::int64_t chunks = 1;  ///< a stage
};

/// The actions of every stage in one step, in order: stage_actions[stage].
struct Schedule {
  ScheduleKind kind = ScheduleKind::kGpipe;
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
  std::int64_t chunks = 1;  ///< the most of a stage
  ChunkOrder order;
  std::vector<std::vector<Action>> stage_actions;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Where the input of `position` comes from; nothing for the first layers.
[[nodiscard]] std::optional<StageChunk> upstream(const Schedule& schedule,
                                                 const StageChunk& position);

/// Where the output of `position` goes; nothing for the last layers.
[[nodiscard]] std::optional<StageChunk> downstream(const Schedule& schedule,
                                                   const StageChunk& position);

/// The chunk that receives the message of a send or a receive of `stage`. Where the schedule has no
/// such neighbour, the same chunk of the action's peer.
[[nodiscard]] StageChunk receiver_of(const Schedule& schedule, std::int64_t stage,
                                     const Action& action);

/// Whether a stage computes something between an input gradient and its weight gradient.
[[nodiscard]] bool defers_weight_gradients(const Schedule& schedule);

/// The compute actions of every stage, without communication. Backward is two actions, input
/// gradient and then weight gradient. On every stage and chunk and in every kind of schedule weight
/// gradients ascend by microbatch, so that a lane accumulates its microbatches in order.
/// Pre: each size >= 1; one chunk but for interleaved, two for zb-v.
/// Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B);
/// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021
/// (interleaved); Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (zb-h1, zb-h2); Qi et
/// al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (zb-v).
[[nodiscard]] Schedule compute_order(ScheduleKind kind, const ScheduleSize& size);

/// Forward passes alone. Each stage runs its last chunk that has an input.
/// Pre: each size >= 1; `order` is not empty.
[[nodiscard]] Schedule forward_order(const ChunkOrder& order, std::int64_t stages,
                                     std::int64_t microbatches);

/// Forward passes alone, one microbatch after the other through all layers: slow, but no stage
/// waits for another with a message of its own unfinished. Pre: as forward_order().
[[nodiscard]] Schedule one_by_one(const ChunkOrder& order, std::int64_t stages,
                                  std::int64_t microbatches);

/// The schedule with its messages: a receive right before the action that reads it, a send right
/// after the action that computes it, and one reduce after the last weight gradient.
/// With kFused the input gradient is sent after the weight gradient that follows it at once.
/// Pre: `schedule` holds compute actions only.
[[nodiscard]] Schedule insert_communication(Schedule schedule,
                                            nn::BackwardOrder backward = nn::BackwardOrder::kSplit);

/// The complete schedule: compute_order() with its communication. Pre: as compute_order().
[[nodiscard]] Schedule make_schedule(ScheduleKind kind, const ScheduleSize& size,
                                     nn::BackwardOrder backward = nn::BackwardOrder::kSplit);

/// The schedule with each receive moved ahead: where all compute actions take the same time, to the
/// first compute action that begins once the message is sent. No such schedule deadlocks in
/// training: a stage that waits for its messages waits for actions that began earlier.
/// Pre: the schedule is sound.
[[nodiscard]] Schedule with_early_receives(const Schedule& schedule);

/// As in "send-activation of microbatch 3 to stage 1".
[[nodiscard]] std::string text_of(const Action& action);

/// Whether the action sends a message.
[[nodiscard]] bool is_send(ActionKind kind);

/// Whether the action receives a message.
[[nodiscard]] bool is_receive(ActionKind kind);

/// Whether the action sends or receives a gradient.
[[nodiscard]] bool is_gradient(ActionKind kind);

/// Whether the action gathers, frees or reduces what PyTorch has sharded. strata never runs it; its
/// microbatch is 0.
[[nodiscard]] bool is_sharding(ActionKind kind);

}  // namespace strata::pipeline
