#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/step_summary.hpp"

#include "replication/step_result.hpp"
#include "replication/step_runner.hpp"

namespace strata::train {

/// The training loop, as a Replication sees it.
class TrainingLoop {
 public:
  TrainingLoop() = default;
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// What this rank asks of all ranks after `step`; to stop is part of it.
  [[nodiscard]] virtual StepRequests requests(std::int64_t step) = 0;
  [[nodiscard]] virtual StopRequest stop_request() = 0;
  /// What a finished step makes due: a save, an evaluation.
  [[nodiscard]] virtual StepRequests due(std::int64_t step) const = 0;
  /// Around a step that this rank computes with others.
  virtual void begin_step(std::int64_t step) = 0;
  virtual void end_step(const StepResult& result) = 0;
  /// On rank 0: a step that is finished before the ranks agree again.
  virtual void report(const StepResult& result) = 0;

 protected:
  ~TrainingLoop() = default;
};

/// A point of a run at which all ranks agree.
struct AgreedPoint {
  std::int64_t step = 0;     ///< that it is after
  std::int64_t updates = 0;  ///< of the weights, where steps do not count them
  /// Of all ranks, and what is due.
  StepRequests requests;
  bool ends = false;  ///< the run
  /// Steps since the last point that were not reported yet.
  std::vector<StepResult> results;
  /// Where ranks of another job were not awaited: "while ..". Then the run has stopped, and there
  /// is nothing to save.
  std::string stopped;
};

/// How the replicas of a run train together, on one rank: the state beside RankState, and the order
/// of the messages between replicas. As it is here, gradients are summed over all replicas in every
/// step (parallel.sync = step).
class Replication {
 public:
  Replication(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
              pipeline::Executor& executor)
      : setup_(setup),
        plan_(setup.plan),
        rank_(rank),
        world_(*setup.groups.world),
        state_(state),
        executor_(executor) {}
  virtual ~Replication() = default;
  Replication(const Replication&) = delete;
  Replication& operator=(const Replication&) = delete;

  /// Reads weights and optimizer states; without a checkpoint takes the weights in the RankState.
  /// Throws: as RankState.
  virtual void load(const io::Checkpoint* checkpoint);
  /// Begins after `step` of the checkpoint, or 0. Returns: the step to go on after, which is a
  /// later one where other jobs went on meanwhile. Communication: collective over the world.
  [[nodiscard]] virtual std::int64_t start(std::int64_t step) { return step_ = step; }
  /// Trains to the next agreed point. Throws: AgreedError(kDiverged), or Error(kDiverged) where
  /// other ranks do not know, where loss or gradients are not finite, as train.nonfinite says.
  [[nodiscard]] virtual AgreedPoint advance(TrainingLoop& loop);

  // At an agreed point:

  /// Brings the weights to evaluate into the RankState.
  virtual void load_evaluation_weights() {}
  /// Before a save: all weights are finite, and the state is what the last update made of it, where
  /// that was recorded. Communication: collective over the world. Throws: AgreedError.
  virtual void require_good();
  /// What this rank writes to a checkpoint, copied to `memory` or in place. Waits for the copies.
  [[nodiscard]] virtual std::vector<io::TensorSlice> snapshot(const device::Buffer& memory) {
    return state_.snapshot(memory);
  }
  /// Entries of a checkpoint's metadata. The writer's thread may call it while training goes on,
  /// unless plan::ReplicationTraits::saves_at_once.
  [[nodiscard]] virtual nlohmann::json record() const { return nlohmann::json::object(); }
  /// Ends training; logs what it took. Communication: collective over the world.
  virtual void stop();

 protected:
  /// Trains the step after step_ by `train`, as StepRunner::run().
  StepResult& run_step(TrainingLoop& loop, AgreedPoint& point,
                       const std::function<void(StepResult&)>& train);
  /// Adds what is due after the point's step, and what its last step's ranks ask for.
  void agree_on(TrainingLoop& loop, AgreedPoint& point) const;

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  comm::Communicator& world_;
  RankState& state_;
  pipeline::Executor& executor_;
  std::optional<StepRunner> runner_;  ///< from the first step that ranks compute together on
  std::int64_t step_ = 0;             ///< that is done
};

/// The kind of parallel.sync; allocates what the plan lists. Communication: collective over the
/// world.
[[nodiscard]] std::unique_ptr<Replication> make_replication(const TrainerSetup& setup,
                                                            const plan::RankPlan& rank,
                                                            RankState& state,
                                                            pipeline::Executor& executor);

}  // namespace strata::train
