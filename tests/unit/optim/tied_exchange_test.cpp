#include "strata/optim/tied_exchange.hpp"

#include <cstdint>
#include <stdexcept>

#include <gtest/gtest.h>

#include "in_process.hpp"
#include "layouts.hpp"

namespace strata::optim::test::tied_exchange_test {
namespace {

constexpr std::int64_t kBucket = 2048;

TEST(TiedExchange, PlansMemoryForArrivingGradientsOnTheOwnerOfTwoStages) {
  const nn::ParameterLayout layout = nn::layout_of(tied_model(), {0, 2});
  const BucketPlan plan(layout, 1, kBucket);
  const auto bytes = [&](std::int64_t rank, const TiedExchange::Stages& stages, DType dtype) {
    return TiedExchange::memory(plan, rank, stages, dtype).bytes;
  };
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 1}, DType::kFloat32), 4 * kBucket * 4);
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 1}, DType::kBfloat16), 4 * kBucket * 4);
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 1}, DType::kFloat64), 4 * kBucket * 8);
  EXPECT_EQ(bytes(1, {.owner = 0, .borrower = 1}, DType::kFloat32), 0);
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 0}, DType::kFloat32), 0);
}

TEST(TiedExchange, RefusesStagesThatDoNotShareTheParameter) {
  comm::run_in_process_ranks(1, [](comm::Communicator& world) {
    const nn::ParameterLayout layout = nn::layout_of(tied_model(), {0, 2});
    const BucketPlan plan(layout, 1, kBucket);
    ops::Context context(1);
    const auto make = [&](const TiedExchange::Stages& stages) {
      TiedExchange(context, world, layout, plan, 0, stages, DType::kFloat32);
    };
    EXPECT_NO_THROW(make({.owner = 0, .borrower = 1}));
    EXPECT_THROW(make({.owner = 0, .borrower = 0}), std::logic_error);
    EXPECT_THROW(make({.owner = 1, .borrower = 0}), std::logic_error);
  });
}

}  // namespace
}  // namespace strata::optim::test::tied_exchange_test
