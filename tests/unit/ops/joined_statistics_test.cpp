// Statistics of parts, put together.
#include <stdexcept>
#include <vector>

#include "strata/ops/batch_norm.hpp"

#include "tensors.hpp"

namespace strata::ops::joined_statistics_test {
namespace {

using namespace test;

constexpr std::int64_t kParts = 3;
constexpr std::int64_t kRows = 5;
constexpr std::int64_t kColumns = 7;
const std::vector<ReductionStep> kSteps{{1, 2}, {0, 1}};

TEST(JoinedStatistics, AreThoseOfAllRows) {
  Context context(1);
  Tensor<double> x = randoms<double>({kParts * kRows, kColumns}, 1, 2.0);
  // A mean far from 0 would drown the variance of a sum of squares.
  for (double& value : x.elements()) {
    value += 1e6;
  }
  Tensor<double> parts({kParts, 2, kColumns});
  for (std::int64_t p = 0; p < kParts; ++p) {
    const TensorView both = parts.view().flat_slice(p * 2 * kColumns, 2 * kColumns);
    column_statistics(context,
                      x.view()
                          .flat_slice(p * kRows * kColumns, kRows * kColumns)
                          .reshaped(Shape{kRows, kColumns}),
                      both.flat_slice(0, kColumns), both.flat_slice(kColumns, kColumns));
  }
  Tensor<double> mean({kColumns});
  Tensor<double> variance({kColumns});
  combine_statistics(context, kSteps, parts.view(), mean.view(), variance.view());
  for (std::int64_t j = 0; j < kColumns; ++j) {
    double sum = 0.0;
    for (std::int64_t row = 0; row < kParts * kRows; ++row) {
      sum += x.elements()[static_cast<std::size_t>(row * kColumns + j)];
    }
    const double center = sum / static_cast<double>(kParts * kRows);
    double squares = 0.0;
    for (std::int64_t row = 0; row < kParts * kRows; ++row) {
      const double distance = x.elements()[static_cast<std::size_t>(row * kColumns + j)] - center;
      squares += distance * distance;
    }
    const auto at = static_cast<std::size_t>(j);
    EXPECT_NEAR(mean.elements()[at], center, 1e-9);
    EXPECT_NEAR(variance.elements()[at], squares / static_cast<double>(kParts * kRows), 1e-8);
  }
}

TEST(JoinedStatistics, MeansAreAddedAsTheStepsSay) {
  Context context(1);
  // Exact only if the small ones are added first.
  Tensor<float> parts({kParts, 2});
  const std::vector<float> values{16777216.0F, 3.0F, 1.0F, 6.0F, 1.0F, 9.0F};
  std::copy(values.begin(), values.end(), parts.elements().begin());
  Tensor<float> mean({2});
  mean_of_parts(context, kSteps, parts.view(), mean.view());
  EXPECT_EQ(mean.elements()[0], 16777218.0F / 3.0F);
  EXPECT_EQ(mean.elements()[1], 6.0F);
  const std::vector<ReductionStep> others{{0, 1}, {0, 2}};
  mean_of_parts(context, others, parts.view(), mean.view());
  EXPECT_EQ(mean.elements()[0], 16777216.0F / 3.0F);
}

TEST(JoinedStatistics, AdditionsOfPartsThatAreNotThereAreRefused) {
  Context context(1);
  Tensor<float> parts({kParts, 2, kColumns});
  Tensor<float> mean({kColumns});
  Tensor<float> variance({kColumns});
  for (const ReductionStep& wrong :
       {ReductionStep{0, kParts}, ReductionStep{kParts, 0}, ReductionStep{-1, 0},
        ReductionStep{0, -1}, ReductionStep{1, 1}}) {
    const std::vector<ReductionStep> steps{{0, 1}, wrong};
    EXPECT_THROW(combine_statistics(context, steps, parts.view(), mean.view(), variance.view()),
                 std::logic_error)
        << wrong.from << " to " << wrong.into;
    EXPECT_THROW(
        mean_of_parts(context, steps,
                      parts.view().flat_slice(0, kParts * kColumns).reshaped({kParts, kColumns}),
                      mean.view()),
        std::logic_error)
        << wrong.from << " to " << wrong.into;
  }
}

}  // namespace
}  // namespace strata::ops::joined_statistics_test
