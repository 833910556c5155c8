#include "strata/forecast/completion.hpp"

#include <algorithm>
#include <cmath>

#include "strata/core/error.hpp"

namespace strata::forecast {
namespace {

constexpr double kHour = 3600.0;
constexpr double kDay = 24.0 * kHour;

/// A segment of steps with the save behind it.
struct Segment {
  double seconds = 0.0;
  double failures = 0.0;  ///< before one attempt passes
  double expected_seconds = 0.0;
};

Segment segment_of(double seconds, double rate, double restart_seconds) {
  const double failures = std::expm1(rate * seconds);
  return {.seconds = seconds,
          .failures = failures,
          .expected_seconds = failures > 0.0 ? (1.0 / rate + restart_seconds) * failures : seconds};
}

void require(double value, bool valid, const char* option, const char* expected) {
  if (!valid) {
    fail(ExitCode::kUsage, "{} is {}, but must be {}", option, value, expected);
  }
}

void check(const RunConditions& c) {
  const auto from_zero = [](double value, const char* option) {
    require(value, std::isfinite(value) && value >= 0.0, option, "a number from 0");
  };
  require(c.step_seconds, std::isfinite(c.step_seconds) && c.step_seconds > 0.0,
          "the time of a step", "positive");
  require(c.nodes, std::isfinite(c.nodes) && c.nodes >= 1.0, "--nodes", "1 or more");
  require(c.interval_seconds, c.interval_seconds > 0.0,
          "the time between checkpoints (checkpoint.minutes, checkpoint.every)", "positive");
  from_zero(c.steps, "train.steps");
  from_zero(c.checkpoint_seconds, "the time of a checkpoint");
  from_zero(c.failures_per_node_day, "--failures");
  from_zero(c.restart_seconds, "--restart");
  from_zero(c.watts, "the machine's power");
  from_zero(c.kwh_price, "--kwh-price");
  if (c.kwh_price > 0.0 && c.watts == 0.0) {
    fail(ExitCode::kUsage,
         "--kwh-price needs the power of a node, which the machine lacks; give a machine's file "
         "with power.device_w and power.node_w");
  }
  from_zero(c.node_hour_price, "--node-hour-price");
}

/// The expectation with whole steps in each interval, and the failures. Segments of the same length
/// have the same expectation; the last one holds the steps that are left.
Segment whole_run(const RunConditions& c, double interval_seconds, double rate) {
  const double steps =
      std::min(std::max(1.0, std::ceil(interval_seconds / c.step_seconds - 1e-9)), c.steps);
  Segment sum;
  if (c.steps == 0.0) {
    return sum;
  }
  const double full = std::floor(c.steps / steps);
  const double rest = c.steps - full * steps;
  const auto add = [&](double times, double segment_steps) {
    const Segment one =
        segment_of(segment_steps * c.step_seconds + c.checkpoint_seconds, rate, c.restart_seconds);
    sum.seconds += times * one.seconds;
    sum.failures += times * one.failures;
    sum.expected_seconds += times * one.expected_seconds;
  };
  add(full, steps);
  if (rest > 0.0) {
    add(1.0, rest);
  }
  return sum;
}

}  // namespace

double young_interval(double checkpoint_seconds, double seconds_between_failures) {
  return std::sqrt(2.0 * checkpoint_seconds * seconds_between_failures);
}

double daly_interval(double checkpoint_seconds, double seconds_between_failures) {
  if (!(checkpoint_seconds < 2.0 * seconds_between_failures)) {
    return seconds_between_failures;
  }
  const double ratio = checkpoint_seconds / (2.0 * seconds_between_failures);
  return young_interval(checkpoint_seconds, seconds_between_failures) *
             (1.0 + std::sqrt(ratio) / 3.0 + ratio / 9.0) -
         checkpoint_seconds;
}

RunConditions conditions_of(const plan::Plan& plan, const Forecast& forecast,
                            const Machine& machine, std::int64_t node_ranks) {
  const auto& saves = plan.config.checkpoint;
  const auto ranks = static_cast<double>(plan.grid.ranks());
  const double nodes = std::ceil(ranks / static_cast<double>(node_ranks));
  RunConditions conditions{.step_seconds = forecast.step_seconds,
                           .steps = static_cast<double>(plan.total_steps),
                           .checkpoint_seconds = forecast.checkpoint_seconds,
                           .nodes = nodes};
  if (saves.every > 0) {
    conditions.interval_seconds = static_cast<double>(saves.every) * forecast.step_seconds;
  }
  if (saves.minutes > 0.0) {
    conditions.interval_seconds = std::min(conditions.interval_seconds, 60.0 * saves.minutes);
  }
  if (machine.device_watts > 0.0 || machine.node_watts > 0.0) {
    // Of nodes without GPUs, node_devices are the cores.
    const double devices = plan.device == device::DeviceKind::kCuda
                               ? ranks
                               : nodes * static_cast<double>(machine.node_devices);
    conditions.watts = devices * machine.device_watts + nodes * machine.node_watts;
  }
  return conditions;
}

Completion completion_of(const RunConditions& c) {
  check(c);
  const double rate = c.nodes * c.failures_per_node_day / kDay;
  const Segment run = whole_run(c, c.interval_seconds, rate);
  Completion result{.work_seconds = c.steps * c.step_seconds,
                    .expected_seconds = run.expected_seconds,
                    .failures = run.failures};
  result.checkpoint_seconds = run.seconds - result.work_seconds;
  result.best_expected_seconds = run.expected_seconds;
  if (rate > 0.0) {
    result.seconds_between_failures = 1.0 / rate;
    result.best_interval_seconds = daly_interval(c.checkpoint_seconds, 1.0 / rate);
    result.best_expected_seconds =
        whole_run(c, result.best_interval_seconds, rate).expected_seconds;
  }
  if (run.expected_seconds > 0.0) {
    result.lost_share = 1.0 - result.work_seconds / run.expected_seconds;
  }
  const double hours = run.expected_seconds / kHour;
  result.node_hours = c.nodes * hours;
  result.kwh = c.watts > 0.0 ? c.watts / 1000.0 * hours : 0.0;
  result.cost = (c.kwh_price > 0.0 ? c.kwh_price * result.kwh : 0.0) +
                (c.node_hour_price > 0.0 ? c.node_hour_price * result.node_hours : 0.0);
  return result;
}

}  // namespace strata::forecast
