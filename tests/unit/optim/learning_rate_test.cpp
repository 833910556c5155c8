#include "strata/optim/learning_rate.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>

#include <gtest/gtest.h>

namespace strata::optim::learning_rate_test {
namespace {

void expect_rates(const LearningRateOptions& options,
                  const std::map<std::int64_t, double>& rate_at_step) {
  for (const auto& [step, rate] : rate_at_step) {
    EXPECT_DOUBLE_EQ(learning_rate(options, step), rate) << "step " << step;
  }
}

TEST(LearningRate, WarmsUpInEqualSteps) {
  for (const auto kind : {LearningRateKind::kConstant, LearningRateKind::kStep,
                          LearningRateKind::kLinear, LearningRateKind::kCosine}) {
    const LearningRateOptions options{
        .kind = kind, .peak = 0.4, .warmup_steps = 3, .decay_steps = 100, .every_steps = 10};
    for (std::int64_t step = 1; step <= 4; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(options, step), 0.1 * static_cast<double>(step));
    }
  }
}

TEST(LearningRate, IsConstant) {
  EXPECT_EQ(learning_rate({.peak = 0.3}, 1), 0.3);
  EXPECT_EQ(learning_rate({.peak = 0.3}, 1000000), 0.3);
}

TEST(LearningRate, FallsInSteps) {
  expect_rates({.kind = LearningRateKind::kStep,
                .peak = 0.8,
                .warmup_steps = 2,
                .every_steps = 10,
                .factor = 0.5},
               {{3, 0.8}, {12, 0.8}, {13, 0.4}, {33, 0.1}});
}

TEST(LearningRate, FallsLinearlyToTheMinimumAndStaysThere) {
  expect_rates({.kind = LearningRateKind::kLinear,
                .peak = 1.0,
                .minimum = 0.2,
                .warmup_steps = 4,
                .decay_steps = 12},
               {{5, 1.0}, {9, 0.6}, {13, 0.2}, {1000, 0.2}});
}

TEST(LearningRate, FallsAlongACosineToTheMinimumAndStaysThere) {
  const LearningRateOptions options{
      .kind = LearningRateKind::kCosine, .peak = 1.0, .minimum = 0.2, .decay_steps = 60};
  for (std::int64_t step = 1; step <= 60; ++step) {
    const double progress = static_cast<double>(step - 1) / 60.0;
    EXPECT_NEAR(learning_rate(options, step),
                0.2 + 0.4 * (1.0 + std::cos(std::numbers::pi * progress)), 1e-15);
  }
  expect_rates(options, {{31, 0.6}, {61, 0.2}, {500, 0.2}});
}

TEST(LearningRate, DecaysEvenWhereWarmUpIsLonger) {
  expect_rates(
      {.kind = LearningRateKind::kLinear, .peak = 1.0, .warmup_steps = 10, .decay_steps = 5},
      {{11, 1.0}, {12, 0.0}});
}

}  // namespace
}  // namespace strata::optim::learning_rate_test
