#include "strata/optim/gradient_norm.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "layouts.hpp"

namespace strata::optim::test::gradient_norm_test {
namespace {

std::vector<double> squares_on(const nn::ParameterLayout& layout, std::int64_t ranks,
                               std::int64_t bucket, const std::vector<float>& gradients) {
  const BucketPlan plan(layout, ranks, bucket);
  ops::Context context(1);
  std::vector<GradientNorm> norms;
  std::vector<std::span<const double>> gathered;
  for (std::int64_t r = 0; r < ranks; ++r) {
    norms.emplace_back(context, layout, plan, r);
    norms.back().begin(view_of(gradients));
    gathered.push_back(norms.back().partials());
    EXPECT_EQ(gathered.back().size_bytes(),
              static_cast<std::size_t>(GradientNorm::memory(plan).bytes));
  }
  return norms.front().squares(gathered);
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
