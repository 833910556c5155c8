#include "strata/optim/weight_gather.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "in_process.hpp"
#include "layouts.hpp"

namespace strata::optim::test::weight_gather_test {
namespace {

constexpr std::int64_t kBucket = 2048;
/// In place of an element that has not arrived.
constexpr float kAbsent = -77.0F;

/// The rank's own slices of the weights, and nothing else.
std::vector<float> own_weights(const std::vector<float>& weights, const BucketPlan& plan,
                               std::int64_t rank) {
  std::vector<float> own(weights.size(), kAbsent);
  for (const Bucket& bucket : plan.buckets()) {
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(rank)];
    for (std::int64_t i = bucket.elements.begin + slice.begin;
         i < std::min(bucket.elements.begin + slice.end, std::ssize(weights)); ++i) {
      own[static_cast<std::size_t>(i)] = weights[static_cast<std::size_t>(i)];
    }
  }
  return own;
}

/// Whether a layer up to `last` reads an element of the bucket.
bool is_read(const Bucket& bucket, const nn::ParameterLayout& layout, std::int64_t last) {
  return std::ranges::any_of(layout.parameters, [&](const nn::PlacedParameter& placed) {
    return placed.spec.layer <= last && placed.offset < bucket.elements.end &&
           placed.offset + placed.shape.count() > bucket.elements.begin;
  });
}

/// A layer's await() brings the buckets that it and earlier layers read, and no later ones: the
/// message of an in-process rank arrives in the test of its request.
void expect_layer_by_layer(const nn::ParameterLayout& layout, std::int64_t ranks) {
  const BucketPlan plan(layout, ranks, kBucket);
  std::vector<float> weights = arena_numbers(layout, 3);
  weights.resize(static_cast<std::size_t>(layout.weight_elements));
  comm::run_in_process_ranks(ranks, [&](comm::Communicator& world) {
    const std::vector<float> own = own_weights(weights, plan, world.rank());
    std::vector<float> gathered = own;
    WeightGather gather(world, layout, plan, view_of(gathered));
    for (std::size_t b = plan.buckets().size(); b-- > 0;) {
      gather.begin(b);
    }
    for (std::int64_t layer = layout.parameters.front().spec.layer;
         layer <= layout.parameters.back().spec.layer; ++layer) {
      const std::vector<float> before = gathered;
      gather.await(layer);
      bool waited = false;
      for (const Bucket& bucket : plan.buckets()) {
        const bool arrived = is_read(bucket, layout, layer);
        for (std::int64_t i = bucket.elements.begin;
             i < std::min(bucket.elements.end, layout.weight_elements); ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(gathered[at], arrived ? weights[at] : own[at])
              << "element " << i << " after layer " << layer;
          waited = waited || before[at] != gathered[at];
        }
      }
      EXPECT_TRUE(gather.waits_before(layer) || !waited) << "layer " << layer;
      EXPECT_FALSE(gather.waits_before(layer) && ranks == 1);
    }
    gather.finish();
    EXPECT_EQ(gathered, weights);
  });
}

TEST(WeightGather, ALayerWaitsForItsOwnBuckets) {
  for (const std::int64_t ranks : {1, 2, 3}) {
    expect_layer_by_layer(layout_with(kMixed), ranks);
    for (const grid::Range& layers : {grid::Range{0, 4}, grid::Range{0, 2}, grid::Range{2, 4}}) {
      expect_layer_by_layer(nn::layout_of(tied_model(), layers), ranks);
    }
  }
}

}  // namespace
}  // namespace strata::optim::test::weight_gather_test
