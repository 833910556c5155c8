#include "strata/pipeline/simulator.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::pipeline {
namespace {

using ::testing::ElementsAre;

// All costs are sums of powers of two, so that the times are exact and compare with ==.
struct Costs {
  double forward;
  double backward_input;
  double backward_weight;
};

class TrainingKinds : public ::testing::TestWithParam<ScheduleKind> {};

// A fused backward pass has no weight gradients of its own; a split one drains through input
// gradients only.
TEST_P(TrainingKinds, MatchTheBubbleFormula) {
  for (const Costs cost :
       {Costs{1.0, 1.0, 0.0}, Costs{1.0, 2.0, 0.0}, Costs{1.0, 0.5, 0.0}, Costs{0.25, 4.0, 0.0},
        Costs{1.0, 1.0, 1.0}, Costs{1.0, 2.0, 0.5}, Costs{2.0, 0.5, 4.0}, Costs{0.5, 1.0, 0.25}}) {
    for (std::int64_t stages = 1; stages <= 8; ++stages) {
      for (std::int64_t microbatches = 1; microbatches <= 32; ++microbatches) {
        const Simulation result =
            simulate(make_schedule(GetParam(), stages, microbatches),
                     equal_costs(stages, cost.forward, cost.backward_input, cost.backward_weight));
        const auto count = static_cast<double>(microbatches);
        const double critical = cost.forward + cost.backward_input;
        const double makespan = static_cast<double>(microbatches + stages - 1) * critical +
                                count * cost.backward_weight;
        ASSERT_EQ(result.makespan_seconds, makespan) << stages << " stages, " << microbatches;
        ASSERT_DOUBLE_EQ(result.bubble_fraction,
                         static_cast<double>(stages - 1) * critical / makespan);
        for (const double busy : result.busy_seconds) {
          ASSERT_EQ(busy, count * (critical + cost.backward_weight));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TrainingKinds,
                         ::testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1f1b),
                         [](const auto& instance) {
                           return "kind_" + std::string(name_of(instance.param));
                         });

TEST(Simulator, ForwardOnlyFillsAndDrainsOnce) {
  const Simulation result =
      simulate(make_schedule(ScheduleKind::kForwardOnly, 4, 5), equal_costs(4, 2.0, 9.0, 9.0));
  EXPECT_EQ(result.makespan_seconds, 16.0);
  EXPECT_EQ(result.bubble_fraction, 0.375);
}

TEST(Simulator, TheSlowestStageBoundsTheMakespan) {
  StageCosts costs = equal_costs(3, 1.0, 1.0, 0.0);
  costs.forward_seconds[1] = 3.0;
  const Simulation result = simulate(make_schedule(ScheduleKind::kForwardOnly, 3, 4), costs);
  EXPECT_EQ(result.makespan_seconds, 1.0 + 4 * 3.0 + 1.0);
  EXPECT_THAT(result.busy_seconds, ElementsAre(4.0, 12.0, 4.0));
  EXPECT_THAT(result.idle_seconds, ElementsAre(10.0, 2.0, 10.0));
}

TEST(Simulator, LatencyCountsOnceAHopWithOneMicrobatch) {
  const Simulation result =
      simulate(make_schedule(ScheduleKind::kGpipe, 3, 1), equal_costs(3, 1.0, 2.0, 4.0, 0.5));
  // Forward through three stages, two hops; back, two hops; the first stage's weight gradient.
  EXPECT_EQ(result.makespan_seconds, 3.0 + 2 * 0.5 + 3 * 2.0 + 2 * 0.5 + 4.0);
}

TEST(Simulator, ListsEveryActionWithItsTimes) {
  const Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 1);
  const Simulation result = simulate(schedule, equal_costs(2, 1.0, 2.0, 4.0, 0.5));
  const std::vector<TimedAction>& actions = result.actions;
  ASSERT_EQ(actions.size(), schedule.stage_actions[0].size() + schedule.stage_actions[1].size());
  EXPECT_EQ(actions[0].action.kind, ActionKind::kForward);
  EXPECT_EQ(actions[0].stage, 0);
  EXPECT_EQ(actions[0].end_seconds, 1.0);
  for (const TimedAction& timed : actions) {
    if (timed.action.kind == ActionKind::kReceiveActivation) {
      EXPECT_EQ(timed.stage, 1);
      EXPECT_EQ(timed.begin_seconds, 0.0);
      EXPECT_EQ(timed.end_seconds, 1.5);
    }
    if (timed.action.kind == ActionKind::kReceiveGradient) {
      EXPECT_EQ(timed.stage, 0);
      EXPECT_EQ(timed.begin_seconds, 1.0);
      EXPECT_EQ(timed.end_seconds, 5.0);
    }
  }
  for (std::size_t i = 1; i < actions.size(); ++i) {
    EXPECT_LE(actions[i - 1].begin_seconds, actions[i].begin_seconds);
  }
}

TEST(Simulator, RefusesCostsOfAnotherSizeAndDeadlocks) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 1);
  EXPECT_THROW((void)simulate(schedule, equal_costs(3, 1.0, 1.0, 1.0)), std::logic_error);
  schedule.stage_actions[0].clear();
  EXPECT_THROW((void)simulate(schedule, equal_costs(2, 1.0, 1.0, 1.0)), std::logic_error);
}

}  // namespace
}  // namespace strata::pipeline
