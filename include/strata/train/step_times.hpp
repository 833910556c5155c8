#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strata/comm/progress_engine.hpp"

namespace strata::train {

/// The wall time of a step by category, in seconds; the parts add up to the whole (design law 8).
struct StepTimes {
  double step = 0.0;
  double compute = 0.0;  ///< layers, losses, updates, local reductions
  /// Waiting for gradients, weights and reductions of other ranks.
  comm::ExposedSeconds communication;
  double bubble = 0.0;  ///< waiting for a neighbouring stage
  double data = 0.0;    ///< waiting for samples

  [[nodiscard]] double other() const {
    return step - compute - communication.total() - bubble - data;
  }
  StepTimes& operator+=(const StepTimes& others);
  /// The times of one of `steps` steps.
  [[nodiscard]] StepTimes over(double steps) const;
};

/// The parts under the names of metrics.jsonl, in its order; the parts of communication follow
/// their sum (docs/formats.md).
[[nodiscard]] std::vector<std::pair<std::string, double>> named_parts(const StepTimes& times);

/// Moves the stalls of a GPU's compute stream from compute, where the host counted them, to bubble
/// and communication. The stream may also stall while the host waits for samples, which is already
/// counted as data: at most the whole of compute is moved, in proportion to the two kinds of
/// stalls. The sum of the parts does not change.
void count_device_waits(StepTimes& times, const comm::DeviceWaits& waits);

}  // namespace strata::train
