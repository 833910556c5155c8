#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"

namespace strata::train {

/// What a step did.
struct StepResult {
  enum class Update { kDone, kSkipped };

  std::int64_t step = 0;
  StepSummary summary;
  /// Of each own island, where there are islands; then the summary is their mean.
  std::vector<StepSummary> islands;
  double rate = 0.0;  ///< learning rate
  StepTimes times;
  Update update = Update::kDone;
  /// On rank 0 the histograms of weights and gradients, as values of an event.
  std::string histograms;
  /// Of rank 0's server, since the step before; where training is asynchronous.
  struct Async {
    std::int64_t updates = 0;
    double mean_staleness = 0.0;
    std::int64_t most_staleness = 0;
    std::int64_t scaled = 0;
    std::int64_t dropped = 0;
    std::int64_t done_units = 0;  ///< by all workers so far
    std::int64_t all_units = 0;
  };
  std::optional<Async> async;
};

}  // namespace strata::train
