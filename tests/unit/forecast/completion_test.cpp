#include "strata/forecast/completion.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "error_of.hpp"

namespace strata::forecast::completion_test {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kMinute = 60.0;
constexpr double kHour = 60.0 * kMinute;

/// 100 hours of steps of 36 s on 64 nodes, of which one fails in 20 hours.
RunConditions on_64_nodes() {
  return {.step_seconds = 36.0,
          .steps = 10000.0,
          .checkpoint_seconds = 5.0 * kMinute,
          .interval_seconds = kHour,
          .nodes = 64.0,
          .failures_per_node_day = 24.0 / 20.0 / 64.0,
          .restart_seconds = 10.0 * kMinute,
          .watts = 64.0 * 8000.0};
}

TEST(Completion, IsStepsAndSavesWithoutFailures) {
  RunConditions conditions = on_64_nodes();
  conditions.failures_per_node_day = 0.0;
  const Completion done = completion_of(conditions);
  EXPECT_DOUBLE_EQ(done.work_seconds, 100.0 * kHour);
  EXPECT_DOUBLE_EQ(done.checkpoint_seconds, 100.0 * 5.0 * kMinute);
  EXPECT_DOUBLE_EQ(done.expected_seconds, done.work_seconds + done.checkpoint_seconds);
  EXPECT_EQ(done.failures, 0.0);
  EXPECT_EQ(done.seconds_between_failures, kInfinite);
  EXPECT_EQ(done.best_interval_seconds, kInfinite);
}

TEST(Completion, HasOneSaveWithoutAnInterval) {
  RunConditions conditions = on_64_nodes();
  conditions.failures_per_node_day = 0.0;
  conditions.interval_seconds = kInfinite;
  EXPECT_DOUBLE_EQ(completion_of(conditions).checkpoint_seconds, 5.0 * kMinute);
}

TEST(Completion, SavesAfterWholeStepsAndAtTheEnd) {
  RunConditions conditions{.step_seconds = 4.0, .steps = 10.0, .checkpoint_seconds = 1.0};
  for (const auto& [interval, saves] :
       {std::pair(0.1, 10.0), {4.0, 10.0}, {4.1, 5.0}, {12.0, 4.0}, {39.0, 1.0}, {400.0, 1.0}}) {
    conditions.interval_seconds = interval;
    EXPECT_DOUBLE_EQ(completion_of(conditions).checkpoint_seconds, saves) << interval;
  }
  conditions.steps = 0.0;
  EXPECT_EQ(completion_of(conditions).expected_seconds, 0.0);
}

TEST(Completion, FollowsTheClosedForm) {
  const Completion done = completion_of(on_64_nodes());
  const double mean = 20.0 * kHour;
  EXPECT_DOUBLE_EQ(done.seconds_between_failures, mean);
  const double failures = 100.0 * std::expm1(65.0 * kMinute / mean);
  EXPECT_NEAR(done.failures, failures, 1e-9 * failures);
  EXPECT_NEAR(done.expected_seconds, (mean + 10.0 * kMinute) * failures, 1e-3);
  EXPECT_NEAR(done.lost_share, 1.0 - 100.0 * kHour / done.expected_seconds, 1e-12);
  EXPECT_NEAR(done.node_hours, 64.0 * done.expected_seconds / kHour, 1e-6);
  EXPECT_NEAR(done.kwh, 8.0 * done.node_hours, 1e-6);
}

TEST(Completion, GoesOnSmoothlyToNoFailures) {
  RunConditions conditions = on_64_nodes();
  conditions.failures_per_node_day = 1e-15;
  const Completion rare = completion_of(conditions);
  EXPECT_NEAR(rare.expected_seconds, rare.work_seconds + rare.checkpoint_seconds, 1e-3);
}

TEST(Completion, NeverEndsWhereNoSegmentPasses) {
  RunConditions conditions = on_64_nodes();
  conditions.failures_per_node_day = 1e6;
  conditions.restart_seconds = 0.0;
  const Completion never = completion_of(conditions);
  EXPECT_EQ(never.expected_seconds, kInfinite);
  EXPECT_EQ(never.lost_share, 1.0);
}

TEST(Completion, CostsEnergyAndNodeHours) {
  RunConditions conditions = on_64_nodes();
  conditions.failures_per_node_day = 0.0;
  const double hours = 100.0 + 100.0 * 5.0 / 60.0;
  EXPECT_EQ(completion_of(conditions).cost, 0.0);
  conditions.kwh_price = 0.25;
  EXPECT_NEAR(completion_of(conditions).cost, 0.25 * 512.0 * hours, 1e-6);
  conditions.node_hour_price = 10.0;
  EXPECT_NEAR(completion_of(conditions).cost, (0.25 * 512.0 + 640.0) * hours, 1e-6);
  conditions.watts = 0.0;
  EXPECT_THAT(
      test::error_of([&] { static_cast<void>(completion_of(conditions)); }, ExitCode::kUsage),
      testing::HasSubstr("power.device_w"));
  conditions.kwh_price = 0.0;
  EXPECT_NEAR(completion_of(conditions).cost, 640.0 * hours, 1e-6);
}

/// Runs that meet failures at random, one event after the other.
TEST(Completion, IsTheMeanOfSimulatedRuns) {
  constexpr int kRuns = 4000;
  for (const double hours_between : {2.0, 8.0, 40.0}) {
    RunConditions conditions = on_64_nodes();
    conditions.steps = 1234.0;
    conditions.failures_per_node_day = 24.0 / hours_between / conditions.nodes;
    std::mt19937_64 random(1974);
    std::exponential_distribution<double> next_failure(1.0 / (hours_between * kHour));
    double sum = 0.0;
    double squares = 0.0;
    double failures = 0.0;
    for (int run = 0; run < kRuns; ++run) {
      double now = 0.0;
      double failure = next_failure(random);
      double saved = 0.0;
      while (saved < conditions.steps) {
        const double steps = std::min(100.0, conditions.steps - saved);
        const double end = now + steps * conditions.step_seconds + conditions.checkpoint_seconds;
        if (failure < end) {
          now = failure + conditions.restart_seconds;
          failure = now + next_failure(random);
          ++failures;
        } else {
          now = end;
          saved += steps;
        }
      }
      sum += now;
      squares += now * now;
    }
    const double mean = sum / kRuns;
    const double error = std::sqrt((squares / kRuns - mean * mean) / kRuns);
    const Completion expected = completion_of(conditions);
    EXPECT_NEAR(mean, expected.expected_seconds, 4.0 * error) << hours_between;
    EXPECT_NEAR(failures / kRuns, expected.failures, 0.05 * expected.failures) << hours_between;
  }
}

/// Captions of figures 3 to 5 of Daly's paper: a save of 5 minutes.
TEST(CheckpointInterval, IsThePublishedOne) {
  EXPECT_NEAR(daly_interval(5.0, 24.0 * 60.0), 117.0, 0.5);
  EXPECT_NEAR(daly_interval(5.0, 6.0 * 60.0), 57.0, 0.5);
  EXPECT_NEAR(daly_interval(5.0, 15.0), 9.1, 0.05);
  EXPECT_DOUBLE_EQ(young_interval(5.0, 24.0 * 60.0), 120.0);
  EXPECT_DOUBLE_EQ(daly_interval(40.0, 15.0), 15.0);
}

/// The time of a segment over its steps is least where the derivative is 0:
/// exp(-(step + save) / mean) = 1 - step / mean.
TEST(CheckpointInterval, IsNearTheLeastExpectedTime) {
  for (const double mean : {30.0, 100.0, 1000.0, 100000.0}) {
    double least = 0.0;
    double most = mean;
    for (int i = 0; i < 200; ++i) {
      const double middle = (least + most) / 2.0;
      (std::exp(-(middle + 5.0) / mean) < 1.0 - middle / mean ? least : most) = middle;
    }
    EXPECT_NEAR(daly_interval(5.0, mean), least, 0.005 * least) << mean;
    const auto loss = [&](double interval) {
      return mean * std::expm1((interval + 5.0) / mean) / interval;
    };
    EXPECT_LE(loss(daly_interval(5.0, mean)), loss(young_interval(5.0, mean)) + 1e-12) << mean;
  }
}

TEST(Completion, IsBestWithTheBestInterval) {
  RunConditions conditions = on_64_nodes();
  conditions.steps = 1e6;
  const Completion given = completion_of(conditions);
  EXPECT_LT(given.best_expected_seconds, given.expected_seconds);
  conditions.interval_seconds = given.best_interval_seconds;
  EXPECT_DOUBLE_EQ(completion_of(conditions).expected_seconds, given.best_expected_seconds);
  for (const double factor : {0.8, 1.25}) {
    conditions.interval_seconds = factor * given.best_interval_seconds;
    EXPECT_GT(completion_of(conditions).expected_seconds, given.best_expected_seconds) << factor;
  }
}

TEST(Completion, RefusesWhatIsNoCondition) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    double RunConditions::*value;
    const char* option;
    double least;  ///< valid above it, and at it unless it is refused too
  };
  for (const Case& c : {Case{&RunConditions::step_seconds, "time of a step", 0.0},
                        {&RunConditions::steps, "train.steps", -1.0},
                        {&RunConditions::nodes, "--nodes", 0.5},
                        {&RunConditions::interval_seconds, "checkpoint.minutes", 0.0},
                        {&RunConditions::checkpoint_seconds, "time of a checkpoint", -1.0},
                        {&RunConditions::failures_per_node_day, "--failures", -0.1},
                        {&RunConditions::restart_seconds, "--restart", -1.0},
                        {&RunConditions::watts, "power", -1.0},
                        {&RunConditions::kwh_price, "--kwh-price", -1.0},
                        {&RunConditions::node_hour_price, "--node-hour-price", -1.0}}) {
    for (const double value : {c.least, kNan, -kInfinite}) {
      RunConditions conditions = on_64_nodes();
      conditions.*c.value = value;
      EXPECT_THAT(
          test::error_of([&] { static_cast<void>(completion_of(conditions)); }, ExitCode::kUsage),
          testing::HasSubstr(c.option))
          << value;
    }
  }
}

}  // namespace
}  // namespace strata::forecast::completion_test
