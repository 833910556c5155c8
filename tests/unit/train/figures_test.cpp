#include "strata/train/figures.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace strata::train::figures_test {
namespace {

TEST(ValueErrors, AreThoseOfTheFormulas) {
  // Per target: errors 1, -1, 2 and 0, 3, 0; values 1, 2, 6 (mean 3) and 10, 20, 30 (mean 20).
  ValueErrors errors(2);
  errors.add(std::vector{2.0, 10.0}, std::vector{1.0, 10.0});
  errors.add(std::vector{1.0, 23.0}, std::vector{2.0, 20.0});
  errors.add(std::vector{8.0, 30.0}, std::vector{6.0, 30.0});
  const ValueFigures figures = errors.figures();
  EXPECT_DOUBLE_EQ(figures.mean_absolute_error, 7.0 / 6.0);
  EXPECT_DOUBLE_EQ(figures.root_mean_square_error, std::sqrt(15.0 / 6.0));
  EXPECT_DOUBLE_EQ(figures.r2, ((1.0 - 6.0 / 14.0) + (1.0 - 9.0 / 200.0)) / 2.0);
}

TEST(ValueErrors, OfOneValueHaveNoR2) {
  ValueErrors errors(1);
  errors.add(std::vector{2.0}, std::vector{5.0});
  errors.add(std::vector{5.0}, std::vector{5.0});
  EXPECT_TRUE(std::isnan(errors.figures().r2));
  EXPECT_DOUBLE_EQ(errors.figures().mean_absolute_error, 1.5);
}

TEST(AreaUnderCurve, CountsPairs) {
  const std::vector<std::int64_t> labels{0, 1, 0, 1, 1};
  // Of 6 pairs the first positive wins one and ties one, the second wins both, the third none.
  EXPECT_EQ(area_under_curve(std::vector{1.0, 1.0, 0.5, 3.0, -2.0}, labels), 3.5 / 6.0);
  EXPECT_EQ(area_under_curve(std::vector{7.0, 7.0, 7.0, 7.0, 7.0}, labels), 0.5);
}

TEST(AreaUnderCurve, NeedsBothClassesAndNumbers) {
  const std::vector<double> scores{1.0, 2.0};
  EXPECT_EQ(area_under_curve(scores, std::vector<std::int64_t>{1, 1}), std::nullopt);
  EXPECT_EQ(area_under_curve(scores, std::vector<std::int64_t>{0, 0}), std::nullopt);
  EXPECT_EQ(area_under_curve(std::vector{std::numeric_limits<double>::quiet_NaN(), 1.0},
                             std::vector<std::int64_t>{0, 1}),
            std::nullopt);
}

}  // namespace
}  // namespace strata::train::figures_test
