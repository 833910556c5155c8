#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "replica_check.hpp"
#include "stragglers.hpp"

namespace strata::train::test {
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

TEST(RankComparison, ARankIsSlowAtMoreThanOneAndAHalfTimesTheMedian) {
  using Indices = std::vector<std::size_t>;
  EXPECT_EQ(slow_among({1.0, 1.5, 1.0, 1.2}), Indices());
  EXPECT_EQ(slow_among({1.0, 1.6, 1.0, 1.1}), Indices({1}));
  EXPECT_EQ(slow_among({1.0, 1.6}), Indices({1}));
  EXPECT_EQ(slow_among({2.0}), Indices());
}

}  // namespace
}  // namespace strata::train::test
