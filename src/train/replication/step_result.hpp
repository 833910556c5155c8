#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"

namespace strata::train {

/// What a step did.
struct StepResult {
  enum class Update { kDone, kSkipped };

  std::int64_t step = 0;
  StepSummary summary;
  double rate = 0.0;  ///< learning rate
  StepTimes times;
  Update update = Update::kDone;
  /// On rank 0 the histograms of weights and gradients, as values of an event.
  std::string histograms;
  /// Further numbers for the metrics, by name.
  std::vector<std::pair<std::string, double>> numbers;
  /// Of a step that ended without the others: parts of the progress line, before and after its
  /// samples per second.
  std::optional<std::pair<std::string, std::string>> progress;
};

}  // namespace strata::train
