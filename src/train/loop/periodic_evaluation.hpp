#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "strata/io/tokenizer.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/evaluation_history.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/stop_polls.hpp"

namespace strata::train {

/// The evaluations of a training run, and what checkpoint.best and train.patience make of them.
class PeriodicEvaluation {
 public:
  PeriodicEvaluation(const TrainerSetup& setup, const plan::RankPlan& rank,
                     pipeline::Executor& executor)
      : setup_(setup), plan_(setup.plan), rank_(rank), executor_(executor) {}

  /// On rank 0: where results go. Reads those of earlier launches.
  void open(MetricsFile& metrics, const io::Tokenizer* tokenizer);

  /// Evaluates the weights in the RankState after `step`. Returns: judgement(); nothing where a
  /// stop was requested meanwhile. Pre: there are test data. Communication: collective over the
  /// world. Throws: AgreedError(kDiverged) where the loss is not finite.
  [[nodiscard]] std::optional<StepRequests> run(std::int64_t step,
                                                const std::function<StopRequest()>& stop_request);
  /// The step of the last run(); -1: none.
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }
  /// Whether an earlier launch ended before its evaluation after `step` did; not where that failed.
  /// Communication: collective over the world.
  [[nodiscard]] bool is_left(std::int64_t step);

  /// Whether evaluations decide about checkpoints or the end.
  [[nodiscard]] bool decides() const;
  /// What follows from the evaluations up to `step`: kSave where it is the best checkpoint, kStop
  /// where train.patience is over. Rank 0 has them. Communication: a broadcast over the world.
  [[nodiscard]] StepRequests judgement(std::int64_t step);
  /// On rank 0 the best of the existing checkpoints and `step`; -1 where none is to be kept.
  [[nodiscard]] std::int64_t best_step(std::int64_t step) const;
  void log_patience(std::int64_t step) const;

 private:
  /// The text that TensorBoard shows of a language model.
  void write_text_sample(std::int64_t step, StopPolls& polls);

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  pipeline::Executor& executor_;
  MetricsFile* metrics_ = nullptr;            ///< on rank 0
  const io::Tokenizer* tokenizer_ = nullptr;  ///< on rank 0
  std::optional<EvaluationHistory> history_;  ///< on rank 0, where it matters
  std::int64_t last_step_ = -1;
};

}  // namespace strata::train
