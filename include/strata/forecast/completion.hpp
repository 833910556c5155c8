#pragma once

#include <limits>

#include "strata/forecast/forecast.hpp"

namespace strata::forecast {

/// What a run meets on the way to its last step.
struct RunConditions {
  double step_seconds = 0.0;
  double steps = 0.0;               ///< of the run
  double checkpoint_seconds = 0.0;  ///< of a save, in which no step is done
  /// Of steps between two saves; infinite: one save, at the end.
  double interval_seconds = std::numeric_limits<double>::infinity();
  double nodes = 1.0;
  double failures_per_node_day = 0.0;
  double restart_seconds = 0.0;  ///< from a failure to the first repeated step, with the queue
  double watts = 0.0;            ///< of all nodes with their devices; 0: not known
  double kwh_price = 0.0;        ///< in any currency; 0: not known
  double node_hour_price = 0.0;  ///< the same
};

/// The predicted end of a run and its cost.
struct Completion {
  double work_seconds = 0.0;        ///< of the steps alone
  double checkpoint_seconds = 0.0;  ///< of the saves alone
  /// The expectation, with what failures cost; infinite where it exceeds any number.
  double expected_seconds = 0.0;
  double failures = 0.0;  ///< the expected number
  /// Of the whole job; infinite without failures.
  double seconds_between_failures = std::numeric_limits<double>::infinity();
  double lost_share = 0.0;  ///< of the expected time, in saves, repeated steps and restarts
  /// By Daly's formula, with the expectation for it; infinite without failures.
  double best_interval_seconds = std::numeric_limits<double>::infinity();
  double best_expected_seconds = 0.0;
  double node_hours = 0.0;
  double kwh = 0.0;   ///< 0: not known
  double cost = 0.0;  ///< of energy and node hours; 0: not known
};

/// The conditions of a forecast step, until `plan`'s last step, with the config's interval; without
/// failures and prices. `node_ranks`: of a node.
[[nodiscard]] RunConditions conditions_of(const plan::Plan& plan, const Forecast& forecast,
                                          const Machine& machine, std::int64_t node_ranks);

/// Failures come at a constant rate to each node, and any of them ends the job, which repeats the
/// steps since its last save. A segment of `a` seconds, steps and save, takes
///   (1 / rate + restart) (exp(rate a) - 1)
/// seconds on average: (exp(rate a) - 1) failures are expected before it passes. Each costs the
/// restart and the work since the last save. No failure comes while the job waits to restart.
/// The time of restarts counts as node hours. Throws: Error(kUsage) that names the option.
[[nodiscard]] Completion completion_of(const RunConditions& conditions);

/// The best time between saves where failures are rare, in seconds.
/// Source: J. W. Young, "A first order approximation to the optimum checkpoint interval",
/// Communications of the ACM 17(9), 1974.
[[nodiscard]] double young_interval(double checkpoint_seconds, double seconds_between_failures);

/// The same where they are not.
/// Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
/// dumps", Future Generation Computer Systems 22(3), 2006, equation 37.
[[nodiscard]] double daly_interval(double checkpoint_seconds, double seconds_between_failures);

}  // namespace strata::forecast
