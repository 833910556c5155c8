#include "strata/comm/values.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "in_process.hpp"

namespace strata::comm::values_test {
namespace {

TEST(Values, AreGatheredInRankOrder) {
  run_in_process_ranks(3, [](Communicator& world) {
    EXPECT_EQ(gathered(world, 10 * world.rank()), (std::vector<std::int64_t>{0, 10, 20}));
    const std::vector<double> mine{0.5 + static_cast<double>(world.rank()), 7.0};
    EXPECT_EQ(gathered_rows(world, std::span(mine)),
              (std::vector<double>{0.5, 7.0, 1.5, 7.0, 2.5, 7.0}));
    EXPECT_EQ(broadcast_from(world, world.rank(), 2), 2);
  });
}

TEST(Values, OfAStepThatRank0RunsAreTheSameOnAllRanks) {
  run_in_process_ranks(3, [](Communicator& world) {
    std::int64_t runs = 0;
    EXPECT_EQ(agree_on_first(world, [&] { return ++runs; }), 1);
    EXPECT_EQ(agree_on_first(world, [&] { return "step " + std::to_string(++runs); }), "step 2");
    agree_on_first(world, [&] { ++runs; });
    EXPECT_EQ(runs, world.rank() == 0 ? 3 : 0);
  });
}

TEST(Values, OfAStepThatFailsAreAnErrorOnAllRanks) {
  run_in_process_ranks(3, [](Communicator& world) {
    const auto fails = [] { fail(ExitCode::kData, "no such file"); };
    try {
      agree_on_first(world, fails);
      ADD_FAILURE() << "rank " << world.rank() << " goes on";
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_STREQ(error.what(), "rank 0: no such file");
    }
  });
}

}  // namespace
}  // namespace strata::comm::values_test
