#pragma once

#include <cstdint>
#include <optional>

#include "strata/pipeline/executor.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/step_times.hpp"
#include "strata/train/timeline.hpp"

namespace strata::train {

/// Records the steps of run.timeline on one rank and writes timeline.json after the last.
class TimelineRecorder {
 public:
  TimelineRecorder(const TrainerSetup& setup, const plan::RankPlan& rank,
                   pipeline::Executor& executor)
      : setup_(setup), rank_(rank), executor_(executor) {}

  void begin_step(std::int64_t step);
  /// Communication: collective over the world after the last step.
  void end_step(std::int64_t step, double begin, const StepTimes& times);
  /// Writes what it has recorded of a run that ends early. Communication: collective over the
  /// world.
  void finish();

 private:
  const TrainerSetup& setup_;
  const plan::RankPlan& rank_;
  pipeline::Executor& executor_;
  std::optional<Timeline> timeline_;  ///< while it records
  bool written_ = false;
};

}  // namespace strata::train
