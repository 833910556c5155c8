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
#include "strata/train/test_fault.hpp"

#include "loop/replica_check.hpp"
#include "loop/sample_feed.hpp"
#include "loop/step_repeat.hpp"
#include "loop/step_result.hpp"
#include "replication/islands.hpp"

namespace strata::train {

/// Runs training steps on one rank.
class StepRunner {
 public:
  /// Starts to read samples, from those of the step after `first_step` on. `islands`: null without.
  StepRunner(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
             Islands* islands, pipeline::Executor& executor, std::int64_t first_step);

  /// Trains one step. `requests` gives what this rank asks of all at the step's end. Where there
  /// are islands, the losses and the requests of all are known at the end of a round only.
  /// Throws: AgreedError(kDiverged) where loss or gradients are not finite, as train.nonfinite
  /// says; the weights are as before the step.
  [[nodiscard]] StepResult run(std::int64_t step, const std::function<StepRequests()>& requests);

  /// Before a save: the state is what the last update made of it, where that was recorded.
  /// Communication: over the world. Throws: AgreedError(kPeer).
  void confirm_state() { check_.confirm(ReplicaCheck::Until::kSave); }
  /// What the checks of replicas took, for the log; empty without checks.
  [[nodiscard]] std::string check_text() const;

  /// Steps whose update was skipped.
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }

 private:
  /// Lanes, and the samples of them.
  struct Work {
    const plan::RankPlan& rank;
    SampleFeed& feed;
    std::int64_t first_microbatch = 0;  ///< of the rank's
  };
  /// A step of the island that is in the state.
  void train(std::int64_t step, const std::function<StepRequests()>& requests, StepResult& result);
  void train_islands(std::int64_t step, const std::function<StepRequests()>& requests,
                     StepResult& result);
  /// Whether the step has histograms for TensorBoard.
  [[nodiscard]] bool is_histogram_step(std::int64_t step) const;
  /// Encodes those of slices' tensors PREFIX/PARAMETER, on rank 0.
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
  [[nodiscard]] double clip_scale(double norm) const;
  [[nodiscard]] bool check_due(std::int64_t step) const;
  void check(std::int64_t step);
  void inject(FaultPlace place, std::int64_t step);

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  RankState& state_;
  Islands* islands_;
  pipeline::Executor& executor_;
  SampleFeed feed_;
  std::optional<TestFault> fault_;
  double delay_seconds_;
  ReplicaCheck check_;
  StepRepeat repeat_;
  std::int64_t first_microbatch_ = 0;  ///< of the island in the state
  double began_;
  double last_check_;
  std::int64_t last_checked_step_;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace strata::train
