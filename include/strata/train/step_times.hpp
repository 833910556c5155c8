#pragma once

#include "strata/comm/progress_engine.hpp"

namespace strata::train {

/// Where a step's wall time went, in seconds; the parts add up to the whole (design law 8).
struct StepTimes {
  double step = 0.0;
  double compute = 0.0;        ///< layers, losses, updates, local additions
  double communication = 0.0;  ///< waiting for gradients, weights and sums of other ranks
  double bubble = 0.0;         ///< waiting for a neighbouring stage
  double data = 0.0;           ///< waiting for samples

  [[nodiscard]] double other() const { return step - compute - communication - bubble - data; }
};

/// Moves the time in which a GPU's compute stream stood still for messages from compute, where the
/// host counted it, to bubble and communication. The stream may also stand still while the host
/// waits for samples, which has been counted as that: no more is moved than compute has, of both
/// kinds in proportion. The sum of the parts stays.
void count_device_waits(StepTimes& times, const comm::DeviceWaits& waits);

}  // namespace strata::train
