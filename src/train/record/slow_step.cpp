#include "record/slow_step.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace strata::train {

std::string slow_step_text(const StepForecast& forecast, const StepTimes& mean,
                           double save_seconds) {
  constexpr double kFactor = 2.0;
  const StepTimes& expected = forecast.times;
  const double seconds = mean.step + save_seconds;
  if (seconds <= kFactor * expected.step) {
    return "";
  }
  struct Part {
    const char* name;
    double seconds;
    double expected;
    const char* advice;
  };
  const std::array parts{
      Part{"compute", mean.compute, expected.compute,
           "strata doctor shows threads, cores and other work on the nodes"},
      Part{"communication", mean.communication.total(), expected.communication.total(),
           "strata doctor --machine=FILE times messages and shows which libraries carry them"},
      Part{"pipeline bubble", mean.bubble, expected.bubble,
           "strata timeline shows which stage the others wait for"},
      Part{"data", mean.data, expected.data,
           "the file system of the data set is slow, or the ranks have no core for the loader"},
      Part{"checkpoint", save_seconds, 0.0,
           "the file system of run.dir is slow; checkpoint.minutes sets the time between saves"},
      Part{"other", mean.other(), expected.other(), "run.timeline records where the time goes"}};
  const Part& worst =
      *std::ranges::max_element(parts, {}, [](const Part& p) { return p.seconds - p.expected; });
  return fmt::format(
      "a step takes {:.3g} s, the forecast for {} is {:.3g} s: {} takes {:.3g} s instead of {:.3g} "
      "s; {}",
      seconds, forecast.machine, expected.step, worst.name, worst.seconds, worst.expected,
      worst.advice);
}

}  // namespace strata::train
