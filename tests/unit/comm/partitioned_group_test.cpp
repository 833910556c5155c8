#include "strata/comm/partitioned_group.hpp"

#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/clock.hpp"

#include "slow_group.hpp"

namespace strata::comm::test::partitioned_group_test {
namespace {

TEST(PartitionedGroup, CountsMessagesWithoutWhatIsComputedMeanwhile) {
  SlowGroup slow(0.02);
  PartitionedGroup group(slow, slow, 2);
  std::vector<float> mine(1);
  std::vector<float> all(2);
  const double begin = now_seconds();
  for (int i = 0; i < 2; ++i) {
    group.all_gather_parts(payload_of(std::span(mine)), payload_of(std::span(all)));
  }
  const double seconds = now_seconds() - begin;
  EXPECT_GE(group.exposed_seconds(), slow.message_seconds());
  EXPECT_LE(group.exposed_seconds(), seconds - slow.computing_seconds());
  group.reset_clock();
  EXPECT_EQ(group.exposed_seconds(), 0.0);
}

}  // namespace
}  // namespace strata::comm::test::partitioned_group_test
