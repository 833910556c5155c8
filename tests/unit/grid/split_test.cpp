#include "strata/grid/split.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/random.hpp"

namespace strata::grid::split_test {
namespace {

double slowest_of(const std::vector<double>& costs, const std::vector<Range>& stages) {
  double slowest = 0.0;
  for (const Range& stage : stages) {
    slowest = std::max(
        slowest, std::accumulate(costs.begin() + stage.begin, costs.begin() + stage.end, 0.0));
  }
  return slowest;
}

/// Every split into non-empty runs, those with longer earlier stages first.
std::vector<std::vector<Range>> all_splits(std::int64_t layers, std::int64_t stages) {
  std::vector<std::vector<Range>> splits;
  std::vector<Range> split;
  const std::function<void(std::int64_t)> extend = [&](std::int64_t begin) {
    if (static_cast<std::int64_t>(split.size()) + 1 == stages) {
      split.push_back({begin, layers});
      splits.push_back(split);
      split.pop_back();
      return;
    }
    for (std::int64_t end = layers - 1; end > begin; --end) {
      split.push_back({begin, end});
      extend(end);
      split.pop_back();
    }
  };
  extend(0);
  return splits;
}

TEST(BalancedSplit, HasTheFastestSlowestStage) {
  const RandomStream stream(5, RandomPurpose::kSynthesise, 0);
  for (std::uint64_t trial = 0; trial < 60; ++trial) {
    const auto layers = static_cast<std::int64_t>(1 + stream.words(trial)[0] % 9);
    // Small whole costs, zeros among them: ties are frequent and sums are exact.
    std::vector<double> costs;
    for (std::int64_t i = 0; i < layers; ++i) {
      costs.push_back(stream.words(trial, 1 + static_cast<std::uint64_t>(i))[0] % 6);
    }
    for (std::int64_t stages = 1; stages <= layers; ++stages) {
      const StageSplit split = balanced_split(costs, stages);
      const std::vector<std::vector<Range>> splits = all_splits(layers, stages);
      double cheapest = slowest_of(costs, splits.front());
      for (const std::vector<Range>& other : splits) {
        cheapest = std::min(cheapest, slowest_of(costs, other));
      }
      ASSERT_EQ(slowest_of(costs, split.stages), cheapest) << layers << " in " << stages;
      ASSERT_NE(std::find(splits.begin(), splits.end(), split.stages), splits.end());
      const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
      const double mean = total / static_cast<double>(stages);
      EXPECT_DOUBLE_EQ(split.imbalance, total > 0.0 ? cheapest / mean : 1.0);
    }
  }
}

TEST(BalancedSplit, MakesEarlierStagesLongWhereItCan) {
  EXPECT_EQ(balanced_split(std::vector{1.0, 1.0, 1.0}, 2).stages,
            (std::vector<Range>{{0, 2}, {2, 3}}));
  EXPECT_EQ(balanced_split(std::vector{0.0, 4.0, 0.0, 0.0}, 2).stages,
            (std::vector<Range>{{0, 3}, {3, 4}}));
}

TEST(BalancedSplit, OfManyLayersLooksAtEachOnceForAStage) {
  // The square of the layers would take longer than a test may.
  constexpr std::int64_t kLayers = 200'000;
  constexpr std::int64_t kStages = 50;
  const StageSplit split = balanced_split(std::vector<double>(kLayers, 1.0), kStages);
  ASSERT_EQ(std::ssize(split.stages), kStages);
  for (std::int64_t s = 0; s < kStages; ++s) {
    EXPECT_EQ(split.stages[static_cast<std::size_t>(s)],
              (Range{s * kLayers / kStages, (s + 1) * kLayers / kStages}));
  }
}

TEST(BalancedSplit, RefusesMoreStagesThanLayers) {
  EXPECT_THROW(static_cast<void>(balanced_split(std::vector{1.0}, 2)), std::logic_error);
  EXPECT_THROW(static_cast<void>(balanced_split(std::vector{1.0}, 0)), std::logic_error);
}

TEST(ExplicitSplit, BeginsStagesAtTheGivenLayers) {
  const std::vector costs{1.0, 1.0, 1.0, 3.0};
  const StageSplit split = explicit_split(costs, std::vector<std::int64_t>{0, 1, 3});
  EXPECT_EQ(split.stages, (std::vector<Range>{{0, 1}, {1, 3}, {3, 4}}));
  EXPECT_DOUBLE_EQ(split.imbalance, 1.5);
}

TEST(ExplicitSplit, RefusesListsThatDoNotAscendFromZero) {
  const std::vector costs{1.0, 1.0, 1.0};
  for (const std::vector<std::int64_t>& firsts :
       {std::vector<std::int64_t>{1, 2}, {0, 2, 1}, {0, 0}, {0, 3}}) {
    EXPECT_THROW(static_cast<void>(explicit_split(costs, firsts)), std::logic_error);
  }
}

}  // namespace
}  // namespace strata::grid::split_test
