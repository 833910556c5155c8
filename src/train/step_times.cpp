#include "strata/train/step_times.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace strata::train {

StepTimes& StepTimes::operator+=(const StepTimes& others) {
  step += others.step;
  compute += others.compute;
  communication += others.communication;
  bubble += others.bubble;
  data += others.data;
  return *this;
}

StepTimes StepTimes::over(double steps) const {
  StepTimes one{.step = step / steps,
                .compute = compute / steps,
                .communication = communication,
                .bubble = bubble / steps,
                .data = data / steps};
  one.communication *= 1.0 / steps;
  return one;
}

std::vector<std::pair<std::string, double>> named_parts(const StepTimes& times) {
  std::vector<std::pair<std::string, double>> parts{
      {"compute_seconds", times.compute}, {"communication_seconds", times.communication.total()}};
  for (const auto& [axis, name] : enum_table<grid::Axis>()) {
    parts.emplace_back(fmt::format("{}_group_seconds", name), times.communication.of(axis));
  }
  parts.insert(parts.end(), {{"bubble_seconds", times.bubble},
                             {"data_seconds", times.data},
                             {"other_seconds", times.other()}});
  return parts;
}

void count_device_waits(StepTimes& times, const comm::DeviceWaits& waits) {
  const double stalled = waits.stage_seconds + waits.groups.total();
  if (stalled <= 0.0) {
    return;
  }
  const double moved = std::min(stalled, std::max(times.compute, 0.0));
  comm::ExposedSeconds communication = waits.groups;
  communication *= moved / stalled;
  times.bubble += moved - communication.total();
  times.communication += communication;
  times.compute -= moved;
}

}  // namespace strata::train
