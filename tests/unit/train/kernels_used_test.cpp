#include "loop/kernels_used.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "in_process.hpp"

namespace strata::train::kernels_used_test {
namespace {

using ::testing::HasSubstr;

TEST(KernelsUsed, OfProductsAreComparedAndReported) {
  const std::string product = "a product of 64 x 64 by 64 x 64 in bfloat16";
  comm::run_in_process_ranks(2, [&](comm::Communicator& world) {
    const auto compared = [&](const std::string& ours) {
      return compared_kernels(world, {{product, ours}, {"attention", "own, as asked"}});
    };
    const ComparedKernels same = compared("cuBLASLt's algorithm 6");
    EXPECT_EQ(same.text, "kernels: products by cuBLASLt; attention by own, as asked");
    EXPECT_EQ(same.warning, "");
    const ComparedKernels other =
        compared(world.rank() == 0 ? "cuBLASLt's algorithm 6" : "cuBLASLt's algorithm 7");
    EXPECT_THAT(other.warning, HasSubstr("rank 0 computes " + product +
                                         " by cuBLASLt's algorithm 6, rank 1 by cuBLASLt's "
                                         "algorithm 7: other grids"));
    // Only ranks that run one product have its kernel.
    const ops::KernelsUsed own{
        {product + (world.rank() == 0 ? "" : ", added"), world.rank() == 0 ? "a" : "b"}};
    EXPECT_EQ(compared_kernels(world, own).warning, "");
  });
}

}  // namespace
}  // namespace strata::train::kernels_used_test
