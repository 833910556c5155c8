#include "strata/optim/optimizer.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layouts.hpp"

namespace strata::optim::test::optimizer_test {
namespace {

constexpr std::int64_t kSteps = 3;
constexpr double kScale = 0.75;

double rate_of(std::int64_t step) {
  return 0.01 * static_cast<double>(step);
}

/// The weights after a few steps of which each of `ranks` ranks updates its own slices.
std::vector<float> updated(const OptimizerOptions& options, const nn::ParameterLayout& layout,
                           std::int64_t ranks, std::int64_t bucket) {
  std::vector<float> weights = arena_numbers(layout, 1);
  const BucketPlan plan(layout, ranks, bucket);
  ops::Context context(1);
  for (std::int64_t r = 0; r < ranks; ++r) {
    Optimizer optimizer(context, options, {layout, plan, r}, view_of(weights));
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const std::vector<float> gradients =
          arena_numbers(layout, static_cast<std::uint64_t>(10 + step));
      for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
        optimizer.rule.update(b, view_of(gradients), rate_of(step), kScale, step);
      }
    }
  }
  return weights;
}

std::vector<OptimizerOptions> all_options() {
  std::vector<OptimizerOptions> all;
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamw,
                          OptimizerKind::kAdagrad}) {
    for (const auto scope : {DecayScope::kAll, DecayScope::kMatrices}) {
      all.push_back({.kind = kind, .weight_decay = 0.1, .decay_scope = scope});
    }
  }
  all.push_back({.momentum = 0.9});
  all.push_back({.momentum = 0.9, .nesterov = Switch::kOn});
  return all;
}

TEST(Optimizer, ChangesEveryParameterAndNothingInTheGaps) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const std::vector<float> before = arena_numbers(layout, 1);
  for (const OptimizerOptions& options : all_options()) {
    const std::vector<float> after = updated(options, layout, 4, 2048);
    std::vector<bool> in_parameter(before.size(), false);
    for (const nn::PlacedParameter& placed : layout.parameters) {
      for (std::int64_t i = 0; i < placed.spec.shape.count(); ++i) {
        in_parameter[static_cast<std::size_t>(placed.offset + i)] = true;
      }
    }
    std::int64_t unchanged = 0;
    std::int64_t spoilt = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      unchanged += in_parameter[i] && after[i] == before[i] ? 1 : 0;
      spoilt += !in_parameter[i] && after[i] != 0.0F ? 1 : 0;
    }
    EXPECT_EQ(spoilt, 0) << name_of(options.kind);
    // Plain SGD steps may vanish beside a weight many times as large.
    EXPECT_LT(unchanged, std::ssize(before) / 10) << name_of(options.kind);
  }
}

TEST(Optimizer, SgdIsItsFormula) {
  const nn::ParameterLayout layout = layout_with({2000, 40});
  const OptimizerOptions options{.weight_decay = 0.5, .decay_scope = DecayScope::kMatrices};
  std::vector<float> expected = arena_numbers(layout, 1);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients =
        arena_numbers(layout, static_cast<std::uint64_t>(10 + step));
    for (const nn::PlacedParameter& placed : layout.parameters) {
      const double decay = placed.spec.shape.rank() >= 2 ? 0.5 : 0.0;
      for (std::int64_t i = 0; i < placed.spec.shape.count(); ++i) {
        const auto at = static_cast<std::size_t>(placed.offset + i);
        const double g =
            kScale * static_cast<double>(gradients[at]) + decay * static_cast<double>(expected[at]);
        expected[at] = static_cast<float>(static_cast<double>(expected[at]) - rate_of(step) * g);
      }
    }
  }
  const std::vector<float> found = updated(options, layout, 1, 4096);
  // Weights and gradients are below 1, where a rounding is at most 2^-25; a step has two.
  constexpr double kRounding = static_cast<double>(kSteps) * 0x1p-24;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], kRounding);
  }
}

TEST(Optimizer, KeepsStateForItsOwnSlicesOnly) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const BucketPlan plan(layout, 4, 4096);
  const auto bytes = [&](const OptimizerOptions& options, std::int64_t rank) {
    const std::vector<nn::MemoryItem> items =
        OwnedTensors::memory({layout, plan, rank}, UpdateRule::states(options), DType::kFloat32);
    EXPECT_EQ(items.size(), 1U);
    return items.front().bytes;
  };
  const auto owned = [&](std::int64_t rank) { return Ownership{layout, plan, rank}.elements(); };
  EXPECT_EQ(bytes({.kind = OptimizerKind::kSgd}, 0), 0);
  EXPECT_EQ(bytes({.kind = OptimizerKind::kSgd, .momentum = 0.9}, 1), owned(1) * 4);
  EXPECT_EQ(bytes({.kind = OptimizerKind::kAdam}, 2), owned(2) * 8);
  EXPECT_EQ(bytes({.kind = OptimizerKind::kAdagrad}, 3), owned(3) * 4);
}

TEST(Optimizer, NamesItsStatesAndLeavesThemReadable) {
  using Names = std::vector<std::string>;
  const auto names = [](const OptimizerOptions& options) {
    return UpdateRule::state_names(options, {});
  };
  EXPECT_EQ(names({.kind = OptimizerKind::kSgd}), Names{});
  EXPECT_EQ(names({.momentum = 0.5}), Names{"momentum"});
  EXPECT_EQ(names({.kind = OptimizerKind::kAdamw}), (Names{"adam_m", "adam_v"}));
  EXPECT_EQ(names({.kind = OptimizerKind::kAdagrad}), Names{"adagrad_sum"});

  const nn::ParameterLayout layout = layout_with({1500});
  const BucketPlan plan(layout, 1, 1024);
  ops::Context context(1);
  std::vector<float> weights = arena_numbers(layout, 1);
  Optimizer optimizer(context, {.momentum = 0.5}, {layout, plan}, view_of(weights));
  const std::vector<float> gradients = arena_numbers(layout, 2);
  for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
    optimizer.rule.update(b, view_of(gradients), 0.1, 1.0, 1);
  }
  // The first step's momentum is the gradient.
  for (const OwnedPiece& piece : optimizer.owned.pieces()) {
    const std::span<const float> state = optimizer.owned.state(0, piece).host<float>();
    for (std::size_t i = 0; i < state.size(); ++i) {
      ASSERT_EQ(state[i], gradients[static_cast<std::size_t>(piece.arena_offset) + i]);
    }
  }
}

}  // namespace
}  // namespace strata::optim::test::optimizer_test
