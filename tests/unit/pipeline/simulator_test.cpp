#include "strata/pipeline/simulator.hpp"

#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::pipeline::simulator_test {
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
            simulate(make_schedule(GetParam(), {stages, microbatches}),
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

/// The longest bubble of a kind of schedule; nothing where there is no formula.
struct Bubble {
  ScheduleKind kind;
  nn::BackwardOrder backward;
  std::int64_t chunks;
  std::optional<double> (*seconds)(const Costs& cost, double stages, double microbatches);
};

// The published formulas. Chunks of interleaved take 1 / chunks of the stage's time.
TEST(Simulator, TheLongestBubbleIsThePublishedOne) {
  const auto fused = [](const Costs& cost, double stages, double) -> std::optional<double> {
    return (stages - 1) * (cost.forward + cost.backward_input + cost.backward_weight);
  };
  const auto split = [](const Costs& cost, double stages, double) -> std::optional<double> {
    return (stages - 1) * (cost.forward + cost.backward_input);
  };
  const auto where_groups_are_full = [](const Costs& cost, double stages,
                                        double microbatches) -> std::optional<double> {
    if (std::fmod(microbatches, stages) != 0.0) {
      return std::nullopt;
    }
    return (stages - 1) * (cost.forward + cost.backward_input + cost.backward_weight);
  };
  const auto split_where_groups_are_full = [](const Costs& cost, double stages,
                                              double microbatches) -> std::optional<double> {
    if (std::fmod(microbatches, stages) != 0.0) {
      return std::nullopt;
    }
    return (stages - 1) * (cost.forward + cost.backward_input);
  };
  const auto zb_h1 = [](const Costs& cost, double stages,
                        double microbatches) -> std::optional<double> {
    if (microbatches < stages) {
      return std::nullopt;
    }
    return (stages - 1) * (cost.forward + cost.backward_input - cost.backward_weight);
  };
  const auto zb_h2 = [](const Costs& cost, double stages,
                        double microbatches) -> std::optional<double> {
    if (microbatches < 2 * stages - 1) {
      return std::nullopt;
    }
    return (stages - 1) * (cost.forward + cost.backward_input - 2 * cost.backward_weight);
  };
  const auto zb_v = [](const Costs& cost, double stages,
                       double microbatches) -> std::optional<double> {
    const bool equal = cost.forward == cost.backward_input && cost.forward == cost.backward_weight;
    return equal && microbatches >= 2 * stages - 1 ? std::optional(0.0) : std::nullopt;
  };
  const std::vector<Bubble> kinds = {
      {ScheduleKind::kGpipe, nn::BackwardOrder::kFused, 1, fused},
      {ScheduleKind::k1f1b, nn::BackwardOrder::kFused, 1, fused},
      {ScheduleKind::kGpipe, nn::BackwardOrder::kSplit, 1, split},
      {ScheduleKind::k1f1b, nn::BackwardOrder::kSplit, 1, split},
      {ScheduleKind::kInterleaved, nn::BackwardOrder::kFused, 1, where_groups_are_full},
      {ScheduleKind::kInterleaved, nn::BackwardOrder::kFused, 2, where_groups_are_full},
      {ScheduleKind::kInterleaved, nn::BackwardOrder::kFused, 3, where_groups_are_full},
      {ScheduleKind::kInterleaved, nn::BackwardOrder::kFused, 4, where_groups_are_full},
      {ScheduleKind::kInterleaved, nn::BackwardOrder::kSplit, 2, split_where_groups_are_full},
      {ScheduleKind::kInterleaved, nn::BackwardOrder::kSplit, 4, split_where_groups_are_full},
      {ScheduleKind::kZbH1, nn::BackwardOrder::kSplit, 1, zb_h1},
      {ScheduleKind::kZbH2, nn::BackwardOrder::kSplit, 1, zb_h2},
      {ScheduleKind::kZbV, nn::BackwardOrder::kSplit, 2, zb_v},
  };
  for (const Bubble& kind : kinds) {
    // Weight gradients are no longer than forward and input gradient.
    for (const Costs cost : {Costs{1.0, 1.0, 1.0}, Costs{1.0, 1.0, 0.5}, Costs{2.0, 1.0, 1.0},
                             Costs{1.0, 4.0, 0.25}}) {
      for (std::int64_t stages = 1; stages <= 8; ++stages) {
        for (std::int64_t microbatches = 1; microbatches <= 32; ++microbatches) {
          const std::optional<double> expected =
              kind.seconds(cost, static_cast<double>(stages), static_cast<double>(microbatches));
          if (!expected) {
            continue;
          }
          const Simulation result =
              simulate(make_schedule(kind.kind, {stages, microbatches, kind.chunks}, kind.backward),
                       equal_costs(stages, cost.forward, cost.backward_input, cost.backward_weight),
                       Record::kTotals);
          ASSERT_EQ(result.longest_bubble_seconds(), *expected)
              << name_of(kind.kind) << ", " << stages << " stages, " << microbatches
              << " microbatches, " << kind.chunks << " chunks";
        }
      }
    }
  }
}

/// Measured times of a stage, in milliseconds, and the bubble rates simulated with them. Source: Qi
/// et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, tables 5 and 6.
struct PublishedRates {
  std::int64_t stages;
  std::int64_t microbatches;
  double forward, backward_input, backward_weight, latency;
  double one_f_one_b, interleaved, zb_h1, zb_h2;
};

constexpr PublishedRates kPublished[] = {
    {8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083},
    {8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837},
    {8, 64, 18.546, 18.097, 9.321, 0.762, 0.124, 0.0443, 0.0674, 0.0444},
    {16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672},
    {16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516},
    {16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266},
};

TEST(Simulator, BubbleRatesAreThePublishedOnes) {
  constexpr double kLastDigit = 0.00005;
  constexpr double kConvention = 0.004;  // how messages between chunks are counted is not published
  constexpr std::int64_t kChunks = 3;
  for (const PublishedRates& row : kPublished) {
    const auto rate = [&](ScheduleKind kind, std::int64_t chunks, nn::BackwardOrder backward) {
      const auto share = static_cast<double>(chunks);
      const double bubble =
          simulate(make_schedule(kind, {row.stages, row.microbatches, chunks}, backward),
                   equal_costs(row.stages, row.forward / share, row.backward_input / share,
                               row.backward_weight / share, row.latency),
                   Record::kTotals)
              .longest_bubble_seconds();
      const double busy = static_cast<double>(row.microbatches) *
                          (row.forward + row.backward_input + row.backward_weight);
      return bubble / (bubble + busy);
    };
    EXPECT_NEAR(rate(ScheduleKind::k1f1b, 1, nn::BackwardOrder::kFused), row.one_f_one_b,
                kLastDigit);
    EXPECT_NEAR(rate(ScheduleKind::kInterleaved, kChunks, nn::BackwardOrder::kFused),
                row.interleaved, kConvention);
    EXPECT_NEAR(rate(ScheduleKind::kZbH1, 1, nn::BackwardOrder::kSplit), row.zb_h1, kLastDigit);
    EXPECT_NEAR(rate(ScheduleKind::kZbH2, 1, nn::BackwardOrder::kSplit), row.zb_h2, kLastDigit);
  }
}

TEST(Simulator, ForwardOnlyFillsAndDrainsOnce) {
  const Simulation result =
      simulate(make_schedule(ScheduleKind::kForwardOnly, {4, 5}), equal_costs(4, 2.0, 9.0, 9.0));
  EXPECT_EQ(result.makespan_seconds, 16.0);
  EXPECT_EQ(result.bubble_fraction, 0.375);
}

TEST(Simulator, TheSlowestStageBoundsTheMakespan) {
  StageCosts costs = equal_costs(3, 1.0, 1.0, 0.0);
  costs.times[1].front().forward_seconds = 3.0;
  const Simulation result = simulate(make_schedule(ScheduleKind::kForwardOnly, {3, 4}), costs);
  EXPECT_EQ(result.makespan_seconds, 1.0 + 4 * 3.0 + 1.0);
  EXPECT_THAT(result.busy_seconds, ElementsAre(4.0, 12.0, 4.0));
  EXPECT_THAT(result.idle_seconds, ElementsAre(10.0, 2.0, 10.0));
}

TEST(Simulator, LatencyCountsOnceAHopWithOneMicrobatch) {
  const Simulation result =
      simulate(make_schedule(ScheduleKind::kGpipe, {3, 1}), equal_costs(3, 1.0, 2.0, 4.0, 0.5));
  // Forward through three stages, two hops; back, two hops; the first stage's weight gradient.
  EXPECT_EQ(result.makespan_seconds, 3.0 + 2 * 0.5 + 3 * 2.0 + 2 * 0.5 + 4.0);
}

/// A schedule with costs of its own, and its times counted by hand.
struct Counted {
  const char* name;
  Schedule schedule;
  StageCosts costs;
  double makespan;
  double step;
  std::vector<double> exposed;
};

TEST(Simulator, CountsTimesByChunkMessagesReductionAndOptimizer) {
  const ChunkTimes one{1.0, 2.0, 4.0};
  const ChunkTimes two{0.5, 8.0, 0.25};
  const std::vector<ChunkTimes> both = {one, two};
  const std::vector<LinkTimes> links = {{0.5, 0.25}, {1.0, 2.0}, {16.0, 32.0}};
  const std::vector<Counted> cases = {
      {"a link of each pair, each direction",
       make_schedule(ScheduleKind::kGpipe, {3, 1}),
       {.times = {{one}, {one}, {one}}, .links = links},
       3 * 1.0 + 0.5 + 1.0 + 3 * 2.0 + 2.0 + 0.25 + 4.0,
       16.75,
       {0.25, 2.5, 1.0}},
      // Forward through chunk 0 of three stages, back to the first, through chunk 1, and back.
      {"times of each chunk, and the link that closes the ring",
       make_schedule(ScheduleKind::kInterleaved, {3, 1, 2}),
       {.times = {both, both, both}, .links = links},
       3 * (1.0 + 0.5) + 2 * (0.5 + 1.0) + 16.0 + 3 * (8.0 + 2.0) + 2 * (2.0 + 0.25) + 32.0 + 4.0,
       94.0,
       {0.25 + 16.0 + 0.25, 0.5 + 0.5 + 2.0 + 2.0, 1.0 + 1.0 + 32.0}},
      {"a message that arrives while the stage computes is not exposed",
       make_schedule(ScheduleKind::kForwardOnly, {2, 4}),
       {.times = {{{.forward_seconds = 1.0}}, {{.forward_seconds = 2.0}}}, .links = {{0.5, 0.5}}},
       1.0 + 0.5 + 4 * 2.0,
       9.5,
       {0.0, 0.5}},
      {"a wait is exposed from when the message is sent",
       make_schedule(ScheduleKind::kForwardOnly, {2, 3}),
       {.times = {{{.forward_seconds = 2.0}}, {{.forward_seconds = 1.0}}}, .links = {{0.5, 0.5}}},
       3 * 2.0 + 0.5 + 1.0,
       7.5,
       {0.0, 3 * 0.5}},
      // Stage 1 ends its list at 1 + 1 + 2 + 4 + 1, stage 0 at 1 + 1 + 2 + 2 + 4 + 3.
      {"reduction and optimizer",
       make_schedule(ScheduleKind::kGpipe, {2, 1}),
       {.times = {{one}, {one}}, .reduce_seconds = {3.0, 1.0}, .optimizer_seconds = {2.0, 5.0}},
       13.0,
       18.0,
       {3.0, 1.0}},
  };
  for (const Counted& row : cases) {
    const Simulation result = simulate(row.schedule, row.costs);
    EXPECT_EQ(result.makespan_seconds, row.makespan) << row.name;
    EXPECT_EQ(result.step_seconds, row.step) << row.name;
    EXPECT_EQ(result.exposed_seconds, row.exposed) << row.name;
  }
}

TEST(Simulator, ListsEveryActionWithItsTimes) {
  const Schedule schedule = make_schedule(ScheduleKind::kGpipe, {2, 1});
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
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, {2, 1});
  EXPECT_THROW((void)simulate(schedule, equal_costs(3, 1.0, 1.0, 1.0)), std::logic_error);
  StageCosts costs = equal_costs(2, 1.0, 1.0, 1.0);
  costs.times[1].resize(2);
  EXPECT_THROW((void)simulate(schedule, costs), std::logic_error);
  costs = equal_costs(2, 1.0, 1.0, 1.0);
  costs.optimizer_seconds = {1.0};
  EXPECT_THROW((void)simulate(schedule, costs), std::logic_error);
  schedule.stage_actions[0].clear();
  EXPECT_THROW((void)simulate(schedule, equal_costs(2, 1.0, 1.0, 1.0)), std::logic_error);
}

}  // namespace
}  // namespace strata::pipeline::simulator_test
