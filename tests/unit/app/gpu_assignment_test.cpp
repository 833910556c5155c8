#include "environment/gpu_assignment.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace strata::app {
namespace {

TEST(GpuAssignment, IsAmongRanksThatSeeTheSameGpus) {
  // Two nodes; on the second each pair of ranks sees two GPUs of its own.
  const std::vector<std::string> seen{"a 1 2", "a 1 2", "b 1 2", "b 1 2", "b 3 4", "b 3 4"};
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(assign_among(seen, rank).local_rank, rank % 2) << rank;
    EXPECT_EQ(assign_among(seen, rank).ranks, 2) << rank;
  }
}

}  // namespace
}  // namespace strata::app
