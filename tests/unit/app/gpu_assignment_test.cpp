#include "environment/gpu_assignment.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "environment/run_inputs.hpp"

namespace strata::app::gpu_assignment_test {
namespace {

TEST(GpuAssignment, IsAmongRanksThatSeeTheSameGpus) {
  // Two nodes; on the second each pair of ranks sees two GPUs of its own.
  const std::vector<std::string> seen{"a 1 2", "a 1 2", "b 1 2", "b 1 2", "b 3 4", "b 3 4"};
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(assign_among(seen, rank).local_rank, rank % 2) << rank;
    EXPECT_EQ(assign_among(seen, rank).ranks, 2) << rank;
  }
}

TEST(RanksOfNodes, AreCountedWhereAllNodesHaveAsManyInOrder) {
  const auto count = [](const std::vector<std::string>& hosts) { return ranks_of_nodes(hosts); };
  EXPECT_EQ(count({"a"}), 1);
  EXPECT_EQ(count({"a", "a"}), 2);
  EXPECT_EQ(count({"a", "a", "b", "b", "c", "c"}), 2);
  EXPECT_EQ(count({"a", "b", "a", "b"}), 1);
  EXPECT_EQ(count({"a", "a", "b"}), 1);
  EXPECT_EQ(count({"a", "a", "b", "b", "a", "a"}), 1);
  EXPECT_EQ(count({"b", "a", "a"}), 1);
}

}  // namespace
}  // namespace strata::app::gpu_assignment_test
