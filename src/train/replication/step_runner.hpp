#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "strata/pipeline/executor.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"

#include "replication/replica_check.hpp"
#include "replication/sample_feed.hpp"
#include "replication/step_repeat.hpp"
#include "replication/step_result.hpp"

namespace strata::train {

/// Runs training steps of replicas that exchange gradients, on one rank.
class StepRunner {
 public:
  /// Starts to read the samples of the steps after `first_step`.
  StepRunner(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
             pipeline::Executor& executor, std::int64_t first_step);

  /// Waits for a step's samples and calls `train`, which calls train().
  [[nodiscard]] StepResult run(std::int64_t step, const std::function<void(StepResult&)>& train);
  /// Trains the weights in the RankState on plan.microbatches of the rank's, from
  /// `first_microbatch` on. `requests` gives what this rank asks of all at the step's end.
  /// Throws: AgreedError(kDiverged) where loss or gradients are not finite, as train.nonfinite
  /// says; the weights are as before the step.
  /// `part`: what the names of the tensors in receipts begin with.
  void train(std::int64_t first_microbatch, const std::function<StepRequests()>& requests,
             StepResult& result, const std::string& part = "");
  /// The data sets whose losses StepSummary::sets tells apart; 0 where it does not.
  [[nodiscard]] std::int64_t sets_told_apart() const;
  /// Goes on after another step.
  void restart(std::int64_t step);

  /// Before a save: the state is what the last update made of it, where that was recorded.
  /// Communication: over the world. Throws: AgreedError(kPeer).
  void confirm_state() { check_.confirm(ReplicaCheck::Until::kSave); }
  /// Logs what the checks of replicas took, and how many steps were skipped.
  void log_summary() const;

 private:
  /// Lanes, and the samples of them.
  struct Work {
    const plan::RankPlan& rank;
    SampleFeed& feed;
    std::int64_t first_microbatch = 0;  ///< of the rank's
  };
  /// The data sets of the samples, where the loss of each is told apart.
  [[nodiscard]] SampleSets sets_of(BatchSource& source) const;
  /// Whether the step has histograms for TensorBoard.
  [[nodiscard]] bool is_histogram_step(std::int64_t step) const;
  /// Encodes histograms of the slices' tensors PREFIX/PARAMETER, on rank 0.
  [[nodiscard]] std::string histograms(const std::string& prefix,
                                       const std::vector<io::TensorSlice>& slices);
  /// Forward, backward and the exchange of results; adds its times.
  [[nodiscard]] StepSummary gradients(std::int64_t step, const Work& work,
                                      const std::function<StepRequests()>& requests,
                                      StepTimes& times);
  /// gradients() of the own lanes, after a run on other lanes where the step is one to repeat.
  [[nodiscard]] StepSummary checked_gradients(std::int64_t step,
                                              const std::function<StepRequests()>& requests,
                                              StepTimes& times);
  [[nodiscard]] StepResult::Update judge(std::int64_t step, StepResult& result);
  [[nodiscard]] StepResult::Update skip(std::int64_t step, const StepSummary& summary);
  void compute_again(std::int64_t step, StepResult& result);
  void update(std::int64_t step, StepResult& result);
  [[nodiscard]] bool check_due(std::int64_t step) const;
  void check(std::int64_t step);

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  RankState& state_;
  pipeline::Executor& executor_;
  std::optional<SampleFeed> feed_;
  ReplicaCheck check_;
  StepRepeat repeat_;
  std::int64_t first_microbatch_ = 0;  ///< of train()
  std::string part_;                   ///< of train()
  double began_;
  double last_check_;
  std::int64_t last_checked_step_;
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace strata::train
