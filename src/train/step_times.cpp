#include "strata/train/step_times.hpp"

#include <algorithm>

namespace strata::train {

void count_device_waits(StepTimes& times, const comm::DeviceWaits& waits) {
  const double stood_still = waits.stage_seconds + waits.group_seconds;
  if (stood_still <= 0.0) {
    return;
  }
  const double taken = std::min(stood_still, std::max(times.compute, 0.0));
  const double bubble = taken * (waits.stage_seconds / stood_still);
  times.bubble += bubble;
  times.communication += taken - bubble;
  times.compute -= taken;
}

}  // namespace strata::train
