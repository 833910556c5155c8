#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "strata/optim/gradient_reducer.hpp"
#include "strata/optim/optimizer.hpp"

#include "layouts.hpp"

namespace strata::optim::test::optimizer_bfloat16_test {
namespace {

constexpr std::int64_t kSteps = 3;

const std::vector<OptimizerOptions>& all_options() {
  static const std::vector<OptimizerOptions> kAll{
      {.kind = OptimizerKind::kSgd, .momentum = 0.9},
      {.kind = OptimizerKind::kAdamw, .weight_decay = 0.1, .decay_scope = DecayScope::kMatrices},
      {.kind = OptimizerKind::kAdagrad}};
  return kAll;
}

/// Takes the steps of one data rank.
void take_steps(Optimizer& optimizer, const nn::ParameterLayout& layout, const BucketPlan& plan) {
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients =
        arena_numbers(layout, static_cast<std::uint64_t>(10 + step));
    for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
      optimizer.rule.update(b, view_of(gradients), 0.001, 0.5, step);
    }
  }
}

/// The first `weight_elements` of arena_numbers: the float32 weights of all tests here.
std::vector<float> initial_weights(const nn::ParameterLayout& layout) {
  std::vector<float> weights = arena_numbers(layout, 1);
  weights.resize(static_cast<std::size_t>(layout.weight_elements));
  return weights;
}

std::vector<BFloat16> rounded(const std::vector<float>& values) {
  std::vector<BFloat16> result;
  for (const float value : values) {
    result.emplace_back(value);
  }
  return result;
}

/// Updates include what pads parameters: it must stay 0, for hashes of whole tensors read it.
void expect_zeros_between(const OwnedTensors& owned) {
  const auto elements = static_cast<std::size_t>(owned.tensors().front().count());
  std::vector<bool> used(elements, false);
  for (const OwnedPiece& piece : owned.pieces()) {
    std::fill_n(used.begin() + piece.owned_offset, piece.range.count(), true);
  }
  for (const TensorView& tensor : owned.tensors()) {
    const std::span<const float> values = tensor.host<float>();
    for (std::size_t i = 0; i < elements; ++i) {
      ASSERT_TRUE(used[i] || values[i] == 0.0F) << i;
    }
  }
}

/// The bfloat16 weights after a few steps of which each of `ranks` ranks updates its own slices.
std::vector<BFloat16> updated(const OptimizerOptions& options, const nn::ParameterLayout& layout,
                              std::int64_t ranks) {
  const std::vector<float> initial = initial_weights(layout);
  std::vector<BFloat16> weights(initial.size());
  const TensorView arena{std::span(weights), Shape{layout.weight_elements}};
  const BucketPlan plan(layout, ranks, 2048);
  ops::Context context(1);
  for (std::int64_t r = 0; r < ranks; ++r) {
    Optimizer optimizer(context, options, {layout, plan, r}, arena);
    for (const OwnedPiece& piece : optimizer.owned.pieces()) {
      const std::span<float> master = optimizer.owned.master(piece).host<float>();
      for (std::size_t i = 0; i < master.size(); ++i) {
        master[i] = initial[static_cast<std::size_t>(piece.arena_offset) + i];
      }
    }
    optimizer.rule.round_weights();
    take_steps(optimizer, layout, plan);
    expect_zeros_between(optimizer.owned);
  }
  return weights;
}

TEST(OptimizerBfloat16, RoundsWhatFloat32WeightsBecome) {
  for (const nn::ParameterLayout& layout :
       {layout_with(kMixed), nn::layout_of(tied_model(), {0, 4}, {4, {1, 3}})}) {
    for (const OptimizerOptions& options : all_options()) {
      std::vector<float> weights = initial_weights(layout);
      const BucketPlan plan(layout, 1, 4096);
      ops::Context context(1);
      Optimizer optimizer(context, options, {layout, plan}, view_of(weights));
      take_steps(optimizer, layout, plan);
      EXPECT_NE(weights, initial_weights(layout));
      for (const std::int64_t ranks : {1, 2, 3}) {
        EXPECT_TRUE(updated(options, layout, ranks) == rounded(weights))
            << name_of(options.kind) << " on " << ranks << " ranks";
      }
    }
  }
}

TEST(OptimizerBfloat16, SetMastersReachTheWeightsOfOwnSlicesOnly) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const BucketPlan plan(layout, 2, 2048);
  std::vector<BFloat16> weights(static_cast<std::size_t>(layout.elements), BFloat16(7.0F));
  ops::Context context(1);
  Optimizer optimizer(context, {}, {layout, plan, 1},
                      TensorView(std::span(weights), Shape{layout.elements}));
  std::vector<float> expected(weights.size(), 7.0F);
  for (const OwnedPiece& piece : optimizer.owned.pieces()) {
    const std::span<float> master = optimizer.owned.master(piece).host<float>();
    for (std::size_t i = 0; i < master.size(); ++i) {
      master[i] = 1.0F + static_cast<float>(i) * 0x1p-9F;
      expected[static_cast<std::size_t>(piece.arena_offset) + i] = master[i];
    }
  }
  optimizer.rule.round_weights();
  EXPECT_TRUE(weights == rounded(expected));
}

TEST(OptimizerBfloat16, SmallUpdatesAreNotLost) {
  const nn::ParameterLayout layout = layout_with({1000});
  const BucketPlan plan(layout, 1, 1024);
  std::vector<BFloat16> weights(1024);
  ops::Context context(1);
  Optimizer optimizer(context, {}, {layout, plan}, TensorView(std::span(weights), Shape{1024}));
  const OwnedPiece piece = optimizer.owned.pieces().front();
  for (float& master : optimizer.owned.master(piece).host<float>()) {
    master = 1.0F;
  }
  optimizer.rule.round_weights();
  // A thousandth of what two bfloat16 numbers at 1 differ by, a thousand times.
  const std::vector<float> gradients(1024, -0x1p-7F / 1024.0F);
  for (std::int64_t step = 1; step <= 1024; ++step) {
    optimizer.rule.update(0, view_of(gradients), 1.0, 1.0, step);
  }
  EXPECT_EQ(weights.front(), BFloat16(1.0F + 0x1p-7F));
}

TEST(OptimizerBfloat16, HasFloat32StateAndMasters) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const BucketPlan plan(layout, 4, 4096);
  const Ownership owned{layout, plan, 1};
  const std::vector<nn::MemoryItem> items = OwnedTensors::memory(
      owned, UpdateRule::states({.kind = OptimizerKind::kAdam}), DType::kBfloat16);
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].name, "optimizer state");
  EXPECT_EQ(items[0].bytes, owned.elements() * 8);
  EXPECT_EQ(items[1].name, "master weights");
  EXPECT_EQ(items[1].bytes, owned.elements() * 4);
  const std::vector<nn::MemoryItem> gradients =
      GradientReducer::memory(grid::Assignment::blocked(grid::SumTree(1), 1), 0, plan,
                              {.elements = layout.elements, .dtype = DType::kBfloat16});
  EXPECT_EQ(gradients[0].bytes, layout.elements * 4);
}

}  // namespace
}  // namespace strata::optim::test::optimizer_bfloat16_test
