#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/pipeline/simulator.hpp"
#include "strata/plan/machine.hpp"
#include "strata/plan/plan.hpp"

namespace strata::plan {

/// A part of a step of the slowest stage; the parts add up to the step (design law 8).
struct StepPart {
  std::string name;  ///< as in "matrix products"
  double seconds = 0.0;
  std::string setting;  ///< what would shrink it, as in "train.recompute = none"; empty: nothing
};

/// What a rank of one stage does and holds.
struct StageForecast {
  RankPlan rank;
  std::vector<pipeline::ChunkTimes> chunks;  ///< of one microbatch, in layer order
  double compute_seconds = 0.0;              ///< of a step, without communication
  double memory_bytes = 0.0;                 ///< of its device
};

/// What a step will take.
struct Forecast {
  double step_seconds = 0.0;
  double samples_per_second = 0.0;
  double tokens_per_second = 0.0;  ///< 0 unless a language model
  std::optional<double> mfu;       ///< nothing: the machine has no peak for the dtype
  std::vector<StepPart> parts;     ///< largest first
  std::vector<StageForecast> stages;
  pipeline::StageCosts costs;
  pipeline::Simulation simulation;
  double bubble_fraction = 0.0;
  double exposed_seconds = 0.0;  ///< communication that no computation hides
  /// Whether each rank's memory fits its device.
  bool fits = true;
  double free_bytes = 0.0;  ///< of a device, for arenas
  double checkpoint_bytes = 0.0;
  double checkpoint_seconds = 0.0;
};

/// Goes through a step on paper: allocates nothing and sends nothing.
/// Throws: Error(kUsage) that names a figure which the machine lacks.
[[nodiscard]] Forecast forecast(const Plan& plan, const Machine& machine);

}  // namespace strata::plan
