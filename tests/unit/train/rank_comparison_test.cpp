#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/train/sniff.hpp"

#include "record/stragglers.hpp"
#include "replication/replica_check.hpp"
#include "replication/step_repeat.hpp"

namespace strata::train::test::rank_comparison_test {
namespace {

TEST(RankComparison, TheMajorityNamesTheSuspects) {
  using Ranks = std::vector<std::int64_t>;
  const Ranks members{1, 3, 5, 7};
  EXPECT_EQ(suspects_of(members, {9, 9, 9, 9}), Ranks());
  EXPECT_EQ(suspects_of(members, {9, 9, 4, 9}), Ranks({5}));
  EXPECT_EQ(suspects_of(members, {4, 9, 9, 9}), Ranks({1}));
  EXPECT_EQ(suspects_of(members, {4, 4, 9, 9}), members);
  EXPECT_EQ(suspects_of(members, {9, 9, 4, 5}), members);
  EXPECT_EQ(suspects_of({2}, {9}), Ranks());
}

/// A difference from the other runs, at the place of one rank in one run.
struct Odd {
  std::size_t run;
  std::int64_t rank;
  std::uint64_t& (*field)(RunHashes&);
};

/// Runs with shifts 1, 0 and 2 without a fault, but for `odds`, each with a value of its own.
std::vector<StepRun> runs_with(const grid::Grid& grid, const std::vector<Odd>& odds) {
  std::vector<StepRun> runs;
  for (const std::int64_t shift : {1, 0, 2}) {
    StepRun& run = runs.emplace_back(StepRun{.shift = shift % grid.data});
    for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
      grid::Coordinates place = grid.coordinates_of(rank);
      place.data = (place.data + shift) % grid.data;
      const auto lanes = static_cast<std::uint64_t>(grid.rank_of(place));
      run.ranks.push_back({.forward = {lanes, lanes}, .backward = {lanes, lanes}, .sums = lanes});
    }
  }
  for (std::size_t i = 0; i < odds.size(); ++i) {
    odds[i].field(runs[odds[i].run].ranks[static_cast<std::size_t>(odds[i].rank)]) = 1000 + i;
  }
  return runs;
}

TEST(RankComparison, RunsOfOneStepNameTheRankThatComputedTheOddOne) {
  using Ranks = std::vector<std::int64_t>;
  constexpr auto kForward = [](RunHashes& run) -> std::uint64_t& { return run.forward[0]; };
  constexpr auto kForward1 = [](RunHashes& run) -> std::uint64_t& { return run.forward[1]; };
  constexpr auto kBackward = [](RunHashes& run) -> std::uint64_t& { return run.backward[0]; };
  constexpr auto kBackward1 = [](RunHashes& run) -> std::uint64_t& { return run.backward[1]; };
  constexpr auto kSums = [](RunHashes& run) -> std::uint64_t& { return run.sums; };
  constexpr auto kSummary = [](RunHashes& run) -> std::uint64_t& { return run.summary; };
  const grid::Grid four{.data = 4};
  const grid::Grid stages{.data = 2, .pipeline = 3};  // rank = 2 * stage + replica
  const grid::Grid shards{.data = 3, .tensor = 2};    // rank = 2 * replica + shard
  struct Case {
    grid::Grid grid;
    std::vector<Odd> odds;
    Ranks suspects;
    bool v = false;  ///< the second chunk is placed as in zb-v
  };
  const std::vector<Case> cases{
      {four, {}, {}},
      {four, {{0, 2, kBackward}}, {2}},
      {four, {{0, 2, kBackward}, {1, 2, kBackward}, {2, 2, kBackward}}, {2}},
      {four, {{1, 0, kForward}, {1, 3, kForward}}, {0, 3}},
      // A wrong sum names the owner of the slice, if all lanes' gradients are right.
      {four, {{1, 3, kSums}}, {3}},
      {four, {{0, 1, kBackward}, {0, 0, kSums}, {0, 1, kSums}, {0, 2, kSums}}, {1}},
      {four, {{1, 2, kSummary}}, {2}},
      // Two replicas: the own run and the third one are of the same rank.
      {stages, {{0, 1, kForward}}, {1}},
      {stages, {{0, 1, kForward}, {1, 1, kForward}, {2, 1, kForward}}, {0, 1}},
      // Forward through the stages, then backward.
      {stages, {{1, 2, kForward}, {1, 4, kForward}, {1, 0, kBackward}}, {2}},
      {stages, {{1, 4, kBackward}, {1, 2, kBackward}, {1, 0, kBackward}}, {4}},
      {stages, {{1, 3, kBackward}, {1, 1, kBackward}}, {3}},
      {stages, {{2, 5, kForward}, {2, 0, kBackward}}, {0, 5}},
      // The second chunk of the first stage follows the first chunk of the last.
      {stages, {{1, 4, kForward}, {1, 0, kForward1}}, {4}},
      {stages, {{1, 4, kForward1}, {1, 2, kForward1}, {1, 0, kBackward1}}, {4}, true},
      // The gradient of the second chunk reaches the first chunk of the last stage.
      {stages, {{1, 0, kBackward1}, {1, 4, kBackward}}, {0}},
      {stages, {{1, 0, kBackward1}, {1, 4, kBackward1}, {1, 4, kBackward}}, {4}},
      {stages, {{1, 0, kBackward1}, {1, 4, kBackward1}, {1, 4, kBackward}}, {0}, true},
      // Reductions over the shards spread a fault.
      {shards, {{0, 4, kForward}, {0, 5, kForward}, {0, 4, kBackward}}, {4, 5}},
      {shards, {{0, 4, kBackward}}, {4}},
      // No two runs agree.
      {four, {{0, 0, kForward}, {1, 1, kForward}}, {0, 1, 3}}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [grid, odds, suspects, v] = cases[i];
    const auto order = v ? pipeline::ChunkOrder::v(grid.pipeline, 2)
                         : pipeline::ChunkOrder::loop(grid.pipeline, 2);
    EXPECT_EQ(suspects_among(grid, order, runs_with(grid, odds)), suspects) << "case " << i;
  }
  // Of two runs that differ, either may be wrong.
  const std::vector<StepRun> runs = runs_with(four, {{0, 2, kForward}});
  EXPECT_EQ(suspects_among(four, pipeline::ChunkOrder::loop(1, 1), std::span(runs).first(2)),
            Ranks({2, 3}));
}

TEST(RankComparison, ARankIsSlowAtMoreThanOneAndAHalfTimesTheMedian) {
  using Indices = std::vector<std::size_t>;
  EXPECT_EQ(slow_among({1.0, 1.5, 1.0, 1.2}), Indices());
  EXPECT_EQ(slow_among({1.0, 1.6, 1.0, 1.1}), Indices({1}));
  EXPECT_EQ(slow_among({1.0, 1.6}), Indices({1}));
  EXPECT_EQ(slow_among({2.0}), Indices());
}

TEST(RankComparison, ASniffTestNamesWrongAndSlowRanks) {
  // Ranks 0 to 3 are alike, rank 4 has another processor and other bits.
  std::vector<SniffResult> good(5);
  for (SniffResult& result : good) {
    result = {.kind = 7, .bits = {11, 12}, .seconds = {2e-3, 1e-3}};
  }
  good[4] = {.kind = 8, .bits = {21, 22}, .seconds = {90e-3, 1e-3}};
  struct Case {
    std::function<void(std::vector<SniffResult>&)> change;
    std::vector<std::pair<std::int64_t, const char*>> wrong, slow = {};
  };
  const char* const kOutvoted = "products gave the bits 0000000000000063, on 3 of 4 like ranks";
  const char* const kNoMajority = "no majority of 4 like ranks agrees";
  const std::vector<Case> cases{
      {[](auto&) {}, {}},
      {[](auto& of) { of[2].bits[0] = 0x63; }, {{2, kOutvoted}}},
      // A rank is named by its first wrong part.
      {[](auto& of) {
         of[0].bits = {0x63, 5};
       },
       {{0, kOutvoted}}},
      {[](auto& of) { of[1].bits[0] = of[2].bits[0] = 0x63; },
       {{0, kNoMajority}, {1, kNoMajority}, {2, kNoMajority}, {3, kNoMajority}}},
      // The same wrong answer of most ranks outvotes the right one.
      {[](auto& of) { of[1].bits[1] = of[2].bits[1] = of[3].bits[1] = 9; },
       {{0, "norm and softmax gave the bits"}}},
      {[](auto& of) { of[4].varies[0] = 1; },
       {{4, "products gave other bits when computed again"}}},
      {[](auto& of) { of[3].bits[2] = 1; }, {{3, "a sum of known numbers is wrong"}}},
      {[](auto& of) {
         of[4].bits[3] = 1;
         of[4].sender = 0;
       },
       {{4, "a message of rank 0 arrived"}}},
      // At 3 times the median and at 5 ms more than it.
      {[](auto& of) { of[1].seconds[0] = 7e-3; }, {}, {}},
      {[](auto& of) { of[1].seconds[0] = 7.1e-3; },
       {},
       {{1, "products take 7.1 ms, 3.6 times the median of 4 like ranks, 2 ms"}}},
      {[](auto& of) { of[1].seconds[1] = 4e-3; }, {}, {}},
      {[](auto& of) { of[0].seconds[3] = 20e-3; }, {}, {}},
      {[](auto& of) { of[0].seconds[3] = 21e-3; }, {}, {{0, "messages take 21 ms"}}}};
  const auto expect = [](const std::vector<SniffFinding>& found, const auto& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].rank, expected[i].first);
      EXPECT_NE(found[i].what.find(expected[i].second), std::string::npos) << found[i].what;
    }
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<SniffResult> ranks = good;
    cases[i].change(ranks);
    const SniffFindings found = findings_of(ranks);
    expect(found.wrong, cases[i].wrong);
    expect(found.slow, cases[i].slow);
  }
  EXPECT_TRUE(findings_of(std::span(good).first(1)).wrong.empty());
}

}  // namespace
}  // namespace strata::train::test::rank_comparison_test
