#pragma once

#include <string>

#include "strata/train/setup.hpp"

namespace strata::train {

/// What to say where steps take more than twice their forecast: the part that takes most of the
/// rest, and what to look at; empty where they do not. `mean`: of steps. `save_seconds`: that a
/// step waits for checkpoints, beside its own time.
[[nodiscard]] std::string slow_step_text(const StepForecast& forecast, const StepTimes& mean,
                                         double save_seconds);

}  // namespace strata::train
