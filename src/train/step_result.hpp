#pragma once

#include <cstdint>
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
};

}  // namespace strata::train
