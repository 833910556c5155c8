#include "strata/pipeline/search.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/schedule_file.hpp"

namespace strata::pipeline::search_test {
namespace {

constexpr double kRounding = 1.0 + 1e-12;

/// Stages of different speeds: one is slow, one is fast in one direction.
StageCosts uneven(std::int64_t stages) {
  StageCosts costs = equal_costs(stages, 1.0, 1.25, 0.75, 0.125);
  costs.times.back().front().forward_seconds = 1.5;
  costs.times.front().front().backward_input_seconds = 0.5;
  costs.times[static_cast<std::size_t>(stages / 2)].front().backward_weight_seconds = 1.5;
  return costs;
}

/// Chunks of different times on every stage, and a slow link.
StageCosts uneven_chunks(std::int64_t stages, std::int64_t chunks) {
  StageCosts costs = uneven(stages);
  costs.links.resize(static_cast<std::size_t>(stages), {.activation_seconds = 0.25});
  for (std::vector<ChunkTimes>& own : costs.times) {
    own.resize(
        static_cast<std::size_t>(chunks),
        {.forward_seconds = 0.25, .backward_input_seconds = 2.0, .backward_weight_seconds = 0.125});
  }
  return costs;
}

std::vector<SearchGoal> goals() {
  std::vector<SearchGoal> all;
  for (const std::int64_t stages : {1, 2, 3, 5, 8}) {
    for (const std::int64_t microbatches : {1, 4, 12}) {
      for (const std::int64_t chunks : {1, 2}) {
        for (const std::int64_t memory : {std::int64_t{1}, stages, 2 * stages}) {
          for (const StageCosts& costs :
               {equal_costs(stages, 1.0, 1.0, 1.0), equal_costs(stages, 1.0, 2.0, 0.5, 0.25),
                equal_costs(stages, 1.0, 1.0, 0.0), equal_costs(stages, 0.0, 1.0, 1.0),
                uneven(stages), uneven_chunks(stages, chunks)}) {
            all.push_back({.size = {stages, microbatches, chunks},
                           .costs = costs,
                           .most_live = {memory * chunks}});
          }
        }
      }
    }
  }
  return all;
}

std::vector<ScheduleKind> kinds_of(std::int64_t chunks) {
  if (chunks == 2) {
    return {ScheduleKind::kInterleaved, ScheduleKind::kZbV};
  }
  return {ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kZbH1, ScheduleKind::kZbH2};
}

TEST(Search, FindsSoundSchedulesWithinTheMemoryAndNoWorseThanThoseByName) {
  for (const SearchGoal& goal : goals()) {
    const FoundSchedule found = search(goal);
    SCOPED_TRACE(testing::Message()
                 << goal.size.stages << " stages, " << goal.size.microbatches << " microbatches, "
                 << goal.size.chunks << " chunks, " << goal.most_live.front() << " activations");
    const CheckReport report = check(found.schedule);
    ASSERT_THAT(report.errors, testing::IsEmpty());
    ASSERT_THAT(report.descending_weights, testing::IsEmpty());
    ASSERT_LE(std::ranges::max(report.peak_live), goal.most_live.front());
    const double seconds = found.simulation.makespan_seconds;
    ASSERT_LE(found.lower_bound_seconds, seconds * kRounding);
    bool fits = false;
    for (const ScheduleKind kind : kinds_of(goal.size.chunks)) {
      const Schedule named = make_schedule(kind, goal.size);
      if (std::ranges::max(check(named).peak_live) <= goal.most_live.front()) {
        fits = true;
        ASSERT_LE(seconds, simulate(named, goal.costs).makespan_seconds * kRounding)
            << name_of(kind);
        ASSERT_LE(found.best_named->makespan_seconds, simulate(named, goal.costs).makespan_seconds)
            << name_of(kind);
      }
    }
    ASSERT_EQ(found.best_named.has_value(), fits);
  }
}

// No schedule by name can take less than the bound where its activations fit.
TEST(Search, TheBoundHoldsForSchedulesByName) {
  for (SearchGoal goal : goals()) {
    for (const ScheduleKind kind : kinds_of(goal.size.chunks)) {
      const Schedule named = make_schedule(kind, goal.size);
      goal.most_live = check(named).peak_live;
      ASSERT_LE(lower_bound_seconds(goal, named.order),
                simulate(named, goal.costs).makespan_seconds * kRounding)
          << name_of(kind) << ", " << goal.size.stages << " stages, " << goal.size.microbatches
          << " microbatches";
    }
  }
}

// A stage with little memory does not cost the others theirs.
TEST(Search, EachStageKeepsItsOwnLimit) {
  SearchGoal goal{
      .size = {4, 12, 1}, .costs = equal_costs(4, 1.0, 1.0, 1.0), .most_live = {7, 7, 2, 7}};
  const FoundSchedule uneven = search(goal);
  EXPECT_TRUE(check(uneven.schedule).passed());
  const std::vector<std::int64_t> live = check(uneven.schedule).peak_live;
  for (std::size_t stage = 0; stage < live.size(); ++stage) {
    EXPECT_LE(live[stage], goal.most_live[stage]);
  }
  goal.most_live = {2};
  EXPECT_LT(uneven.simulation.makespan_seconds, search(goal).simulation.makespan_seconds);
}

// Of any number of chunks, each with its share of a stage's times.
TEST(Search, TheChunksWithTheLeastTimeAreFoundAndNoNameIsFaster) {
  const std::vector<std::int64_t> all = {1, 2, 3, 4};
  for (const std::int64_t activations : {1, 4, 8}) {
    const auto costs = [](const ChunkOrder& order) {
      const auto share = 4.0 / static_cast<double>(order.chunks().size());
      return equal_costs(4, share, share, share);
    };
    const std::optional<FoundChunks> best = search({.stages = 4,
                                                    .microbatches = 8,
                                                    .chunks = all,
                                                    .activations = {activations},
                                                    .costs = costs});
    ASSERT_TRUE(best.has_value());
    const FoundSchedule& found = best->found;
    EXPECT_TRUE(check(found.schedule).passed());
    EXPECT_LE(std::ranges::max(check(found.schedule).peak_live),
              activations * found.schedule.chunks);
    EXPECT_EQ(simulate(found.schedule, best->costs).makespan_seconds,
              found.simulation.makespan_seconds);
    std::optional<double> fastest;
    for (const std::int64_t chunks : all) {
      std::vector<ScheduleKind> kinds = {ScheduleKind::kInterleaved};
      if (chunks <= 2) {
        kinds = kinds_of(chunks);
      }
      for (const ScheduleKind kind : kinds) {
        const Schedule named = make_schedule(kind, {4, 8, chunks});
        if (std::ranges::max(check(named).peak_live) <= activations * chunks) {
          const double seconds = simulate(named, costs(named.order)).makespan_seconds;
          fastest = std::min(fastest.value_or(seconds), seconds);
        }
      }
    }
    ASSERT_EQ(found.best_named.has_value(), fastest.has_value());
    if (fastest) {
      EXPECT_EQ(found.best_named->makespan_seconds, *fastest);
      EXPECT_LE(found.simulation.makespan_seconds, *fastest * kRounding);
    }
  }
  const auto costs = [](const ChunkOrder&) { return equal_costs(4, 1.0, 1.0, 1.0); };
  EXPECT_FALSE(
      search({.stages = 4, .microbatches = 8, .chunks = {3}, .activations = {1}, .costs = costs})
          .has_value());
}

TEST(Search, OneActivationRunsMicrobatchesOneByOne) {
  const SearchGoal goal{
      .size = {3, 5, 1}, .costs = equal_costs(3, 1.0, 2.0, 4.0, 0.5), .most_live = {1}};
  const FoundSchedule found = search(goal);
  // From the first stage's forward to its weight gradient: there and back over two hops.
  EXPECT_EQ(found.simulation.makespan_seconds, 5 * (3.0 + 2 * 0.5 + 3 * 2.0 + 2 * 0.5 + 4.0));
  EXPECT_EQ(found.lower_bound_seconds, found.simulation.makespan_seconds);
}

TEST(Search, GivesTheSameScheduleEachTimeAndSurvivesAFile) {
  const SearchGoal goal{.size = {4, 10, 2}, .costs = uneven(4), .most_live = {8}};
  const FoundSchedule found = search(goal);
  EXPECT_EQ(search(goal).schedule, found.schedule);
  const ScheduleFile file =
      parse_schedule(text_of(file_of(found.schedule, FileContent::kCompute)), "made.csv");
  EXPECT_EQ(simulate(schedule_of(file, "made.csv"), goal.costs).makespan_seconds,
            found.simulation.makespan_seconds);
}

TEST(Search, LargeSchedulesReachTheBoundWithTwiceTheMemoryOf1f1b) {
  for (const std::int64_t chunks : {1, 2}) {
    const SearchGoal goal{
        .size = {32, 256, chunks}, .costs = uneven(32), .most_live = {64 * chunks}};
    const FoundSchedule found = search(goal);
    EXPECT_TRUE(check(found.schedule).passed());
    EXPECT_DOUBLE_EQ(found.simulation.makespan_seconds, found.lower_bound_seconds);
    ASSERT_TRUE(found.best_named.has_value());
    EXPECT_LT(found.simulation.makespan_seconds, found.best_named->makespan_seconds);
  }
}

/// Measured times of a stage, in milliseconds, and bubble rates of schedules made for them within p
/// and 2p activations of p stages. Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
/// 2024, tables 5 and 6 (ZB-1p, ZB-2p). There the input gradient frees part of an activation;
/// here the weight gradient frees all of it, and the second rate needs `activations`.
struct PublishedRates {
  std::int64_t stages;
  std::int64_t microbatches;
  double forward, backward_input, backward_weight, latency;
  double within_p, within_2p;
  double reached;  ///< within 2p
  std::int64_t activations;
};

constexpr PublishedRates kPublished[] = {
    {8, 24, 18.522, 18.086, 9.337, 0.601, 0.1585, 0.0433, 0.1015, 24},
    {8, 32, 18.513, 18.086, 9.331, 0.626, 0.1242, 0.0039, 0.0784, 29},
    {8, 64, 18.546, 18.097, 9.321, 0.762, 0.0674, 0.0026, 0.0415, 29},
    {16, 48, 11.347, 11.248, 8.132, 0.377, 0.1397, 0.0066, 0.0624, 44},
    {16, 64, 11.307, 11.254, 8.101, 0.379, 0.1088, 0.0054, 0.0479, 44},
    {16, 128, 11.325, 11.308, 8.109, 0.378, 0.0576, 0.0028, 0.0247, 44},
};

TEST(Search, BubbleRatesAreNoMoreThanThePublishedOnes) {
  constexpr double kLastDigit = 0.00005;
  for (const PublishedRates& row : kPublished) {
    const auto rate = [&](std::int64_t activations) {
      const double bubble =
          search({.size = {row.stages, row.microbatches, 1},
                  .costs = equal_costs(row.stages, row.forward, row.backward_input,
                                       row.backward_weight, row.latency),
                  .most_live = {activations}})
              .simulation.longest_bubble_seconds();
      const double busy = static_cast<double>(row.microbatches) *
                          (row.forward + row.backward_input + row.backward_weight);
      return bubble / (bubble + busy);
    };
    EXPECT_LE(rate(row.stages), row.within_p + kLastDigit) << row.microbatches;
    EXPECT_LE(rate(2 * row.stages), row.reached + kLastDigit) << row.microbatches;
    EXPECT_LE(rate(row.activations), row.within_2p + kLastDigit) << row.microbatches;
  }
}

TEST(Search, RefusesMoreChunksAndTooLittleMemory) {
  const StageCosts costs = equal_costs(2, 1.0, 1.0, 1.0);
  EXPECT_THROW((void)search({.size = {2, 4, 3}, .costs = costs, .most_live = {8}}),
               std::logic_error);
  EXPECT_THROW((void)search({.size = {2, 4, 2}, .costs = costs, .most_live = {1}}),
               std::logic_error);
}

}  // namespace
}  // namespace strata::pipeline::search_test
