#include "strata/optim/gradient_norm.hpp"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "strata/grid/tree.hpp"

#include "layouts.hpp"

namespace strata::optim::test::gradient_norm_test {
namespace {

std::vector<double> squares_on(const nn::ParameterLayout& layout, std::int64_t ranks,
                               std::int64_t bucket, const std::vector<float>& gradients) {
  const BucketPlan plan(layout, ranks, bucket);
  ops::Context context(1);
  std::vector<GradientNorm> norms;
  std::vector<std::vector<double>> partials;
  for (std::int64_t r = 0; r < ranks; ++r) {
    norms.emplace_back(context, Ownership{layout, plan, r});
    norms.back().begin(view_of(gradients));
    partials.push_back(norms.back().partials());
    EXPECT_EQ(partials.back().size(), partials.front().size());
    EXPECT_EQ(std::ssize(norms.back().blocks()), (Ownership{layout, plan, r}.elements() / kBlock));
  }
  return norms.front().squares(
      std::vector<std::span<const double>>(partials.begin(), partials.end()));
}

TEST(GradientNorm, GivesOneValueAPlacedSliceAndNoneForBorrowedOnes) {
  const nn::ParameterLayout layout =
      nn::layout_of(tied_model(), {0, 4}, {.count = 4, .own = {0, 2}});
  const std::vector<float> gradients = arena_numbers(layout, 3);
  const std::vector<double> squares = squares_on(layout, 1, 1 << 20, gradients);
  ASSERT_EQ(squares.size(), layout.parameters.size());
  for (std::size_t p = 0; p < squares.size(); ++p) {
    const nn::PlacedParameter& placed = layout.parameters[p];
    long double expected = 0.0L;
    for (std::int64_t i = 0; i < placed.shape.count(); ++i) {
      const long double g = gradients[static_cast<std::size_t>(placed.offset + i)];
      expected += placed.spec.ownership == nn::Ownership::kOwned ? g * g : 0.0L;
    }
    EXPECT_NEAR(squares[p], static_cast<double>(expected), 1e-13 * static_cast<double>(expected));
  }
  EXPECT_EQ(squares.back(), 0.0);
  for (const std::int64_t ranks : {2, 3, 4}) {
    EXPECT_EQ(squares_on(layout, ranks, 2048, gradients), squares) << ranks << " ranks";
  }
}

TEST(GradientNorm, AddsTheBlocksOfASliceInATree) {
  constexpr std::int64_t kBlocks = 37;
  const nn::ParameterLayout layout = layout_with({5, kBlocks * kBlock});
  std::vector<float> gradients(static_cast<std::size_t>(layout.elements), 0.0F);
  std::vector<double> blocks;
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    // The squares differ so much that each order of additions has a sum of its own.
    const double value =
        std::ldexp(1.0 + static_cast<double>(b) / 64, static_cast<int>(7 * b % 30));
    gradients[static_cast<std::size_t>(layout.parameters[1].offset + b * kBlock)] =
        static_cast<float>(value);
    blocks.push_back(value * value);
  }
  const double expected = grid::sum_in_tree(grid::SumTree(kBlocks), blocks);
  EXPECT_NE(std::accumulate(blocks.begin(), blocks.end(), 0.0), expected);
  for (std::int64_t ranks = 1; ranks <= 5; ++ranks) {
    EXPECT_EQ(squares_on(layout, ranks, 1 << 20, gradients)[1], expected) << ranks << " ranks";
    EXPECT_EQ(squares_on(layout, ranks, 3 * kBlock, gradients)[1], expected) << ranks << " ranks";
  }
}

TEST(GradientNorm, OfAStageWithoutParametersIsNone) {
  const nn::ParameterLayout layout = layout_with({});
  for (const std::int64_t ranks : {1, 3}) {
    EXPECT_TRUE(squares_on(layout, ranks, 1 << 20, {}).empty());
  }
}

// What a rank sends grows with the logarithm of its blocks.
TEST(GradientNorm, SendsFewPartialSums) {
  const nn::ParameterLayout layout = layout_with({kBlock * 1000});
  ops::Context context(1);
  const BucketPlan plan(layout, 3, 1 << 20);
  GradientNorm norm(context, {layout, plan, 1});
  norm.begin(view_of(std::vector<float>(static_cast<std::size_t>(layout.elements), 1.0F)));
  EXPECT_EQ(norm.blocks().size(), 333U);
  EXPECT_LE(norm.partials().size(), 2U * 10U);
}

TEST(GradientNorm, IsTheSumOfSquaresOfEachParameter) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const std::vector<float> gradients = arena_numbers(layout, 2);
  const std::vector<double> squares = squares_on(layout, 2, 2048, gradients);
  ASSERT_EQ(squares.size(), layout.parameters.size());
  for (std::size_t p = 0; p < squares.size(); ++p) {
    const nn::PlacedParameter& placed = layout.parameters[p];
    long double expected = 0.0L;
    for (std::int64_t i = 0; i < placed.spec.shape.count(); ++i) {
      const long double g = gradients[static_cast<std::size_t>(placed.offset + i)];
      expected += g * g;
    }
    EXPECT_NEAR(squares[p], static_cast<double>(expected), 1e-13 * static_cast<double>(expected));
  }
}

}  // namespace
}  // namespace strata::optim::test::gradient_norm_test
