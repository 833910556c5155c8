#pragma once

#include <cstdint>
#include <vector>

#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// Times of one chunk's actions. Units: seconds.
struct ChunkTimes {
  double forward_seconds = 0.0;
  double backward_input_seconds = 0.0;
  double backward_weight_seconds = 0.0;
  /// Of actions that only files have.
  double unshard_seconds = 0.0;
  double reshard_seconds = 0.0;
  double reduce_gradient_seconds = 0.0;

  /// 0 for messages and reduce.
  [[nodiscard]] double of(ActionKind kind) const;
};

/// From the end of the action that computes a message to the message's arrival; no stage is busy
/// with it, and messages do not slow each other down.
struct LinkTimes {
  double activation_seconds = 0.0;
  double gradient_seconds = 0.0;
};

/// Costs of a step.
struct StageCosts {
  /// Of each stage, then of each of its chunks; a single entry stands for all chunks of the stage.
  std::vector<std::vector<ChunkTimes>> times;
  /// A single entry stands for all pairs of stages. Otherwise entry k is of stages k and k + 1, and
  /// the last one of all other pairs.
  std::vector<LinkTimes> links = {{}};
  /// Of each stage, the part of its gradient reduction that nothing overlaps; empty: none.
  std::vector<double> reduce_seconds = {};
  /// Of each stage. The optimizer needs the gradient norm of all stages; empty: it takes no time.
  std::vector<double> optimizer_seconds = {};

  [[nodiscard]] const ChunkTimes& times_of(const StageChunk& position) const;
  [[nodiscard]] const LinkTimes& link(std::int64_t stage, std::int64_t peer) const;
};

/// The same costs for each of `stages` stages.
[[nodiscard]] StageCosts equal_costs(std::int64_t stages, double forward_seconds,
                                     double backward_input_seconds, double backward_weight_seconds,
                                     double send_latency_seconds = 0.0);

/// An action with its begin and end; a receive lasts as long as the stage waits in it.
struct TimedAction {
  std::int64_t stage = 0;
  Action action;
  double begin_seconds = 0.0;
  double end_seconds = 0.0;
};

/// The time of a schedule under given costs.
struct Simulation {
  double makespan_seconds = 0.0;
  /// The same with the longest optimizer, which begins once all stages have ended their lists.
  double step_seconds = 0.0;
  /// For each stage: the time in compute actions, and the rest of the makespan.
  std::vector<double> busy_seconds;
  std::vector<double> idle_seconds;
  /// For each stage: the time between the begin of its first compute action and the end of its last
  /// in which it computes nothing.
  std::vector<double> bubble_seconds;
  /// For each stage: the part of its idle time in which it waits for communication alone, for a
  /// message after its sender has computed it, for the gradient reduction, or in sharding actions.
  std::vector<double> exposed_seconds;
  /// Idle time of all stages over stages times makespan.
  double bubble_fraction = 0.0;
  /// In order of begin, then stage, then position in the stage's list; empty for Record::kTotals.
  std::vector<TimedAction> actions;

  /// Of the stage with the longest bubble.
  [[nodiscard]] double longest_bubble_seconds() const;
};

/// What a simulation keeps.
enum class Record { kActions, kTotals };

/// Simulates a schedule: each stage runs its actions in order, sends never block, a receive ends
/// when its message arrives.
/// For S equal stages, M microbatches and no latency both gpipe and 1f1b take
///   (M + S - 1) (forward + backward_input) + M backward_weight.
/// With a fused backward (backward_weight = 0) the bubble is (S - 1) / (M + S - 1); with a split
/// backward it is smaller, because only input gradients are on the critical path of the drain.
/// Pre: the schedule is sound (check); `costs` are of its stages and chunks.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const StageCosts& costs,
                                  Record record = Record::kActions);

}  // namespace strata::pipeline
