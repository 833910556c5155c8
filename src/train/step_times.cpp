#include "strata/train/step_times.hpp"

#include <algorithm>

namespace strata::train {

void count_device_waits(StepTimes& times, const comm::DeviceWaits& waits) {
  const double stalled = waits.stage_seconds + waits.group_seconds;
  if (stalled <= 0.0) {
    return;
  }
  const double moved = std::min(stalled, std::max(times.compute, 0.0));
  const double bubble = moved * (waits.stage_seconds / stalled);
  times.bubble += bubble;
  times.communication += moved - bubble;
  times.compute -= moved;
}

}  // namespace strata::train
