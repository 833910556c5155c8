#include "strata/optim/gradient_reducer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "in_process.hpp"
#include "layouts.hpp"

namespace strata::optim::test::gradient_reducer_test {
namespace {

constexpr std::int64_t kMicrobatchesPerLane = 3;

/// The gradient of one microbatch, a function of its lane and its number there.
std::vector<float> gradient_of(const nn::ParameterLayout& layout, std::int64_t lane,
                               std::int64_t microbatch) {
  return arena_numbers(layout, static_cast<std::uint64_t>(100 + 10 * lane + microbatch));
}

/// The sum as the design defines it: microbatches in order, lanes by the tree.
std::vector<float> expected_sum(const nn::ParameterLayout& layout, std::int64_t begin,
                                std::int64_t end) {
  std::vector<float> sum;
  if (end - begin == 1) {
    sum = gradient_of(layout, begin, 0);
    for (std::int64_t m = 1; m < kMicrobatchesPerLane; ++m) {
      const std::vector<float> next = gradient_of(layout, begin, m);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += next[i];
      }
    }
    return sum;
  }
  const std::int64_t middle = begin + (end - begin) / 2;
  sum = expected_sum(layout, begin, middle);
  const std::vector<float> right = expected_sum(layout, middle, end);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += right[i];
  }
  return sum;
}

/// In which order a rank's microbatches come.
enum class Order {
  kLaneAfterLane,
  kConcurrentLanes,  ///< the k-th of all own lanes, before the next of any
  // Lane after lane in each of two chunks, of which one is two microbatches ahead.
  kLastChunkAhead,
  kFirstChunkAhead
};

void PrintTo(Order order, std::ostream* out) {
  constexpr std::array kNames{"lane_after_lane", "concurrent_lanes", "last_chunk_ahead",
                              "first_chunk_ahead"};
  *out << kNames[static_cast<std::size_t>(order)];
}

/// A layout of three layers, with a chunk of one and a chunk of two where the order has chunks.
nn::ParameterLayout layout_for(Order order) {
  nn::ParameterLayout layout = layout_with(kMixed);
  if (order == Order::kLastChunkAhead || order == Order::kFirstChunkAhead) {
    layout.chunk_begins = {layout.parameters[2].offset};
  }
  return layout;
}

/// What a stage computes together: microbatches, by number, of some layers.
struct Execution {
  std::vector<std::int64_t> microbatches;
  grid::Range layers{0, 3};
};

std::vector<Execution> executions_of(std::int64_t lanes, Order order) {
  std::vector<Execution> executions;
  if (order == Order::kLastChunkAhead || order == Order::kFirstChunkAhead) {
    constexpr grid::Range kFirst{0, 1};
    constexpr grid::Range kLast{1, 3};
    const std::int64_t count = lanes * kMicrobatchesPerLane;
    for (std::int64_t m = 0; m < count + 2; ++m) {
      if (m < count) {
        executions.push_back({{m}, order == Order::kLastChunkAhead ? kLast : kFirst});
      }
      if (m >= 2) {
        executions.push_back({{m - 2}, order == Order::kLastChunkAhead ? kFirst : kLast});
      }
    }
    return executions;
  }
  const std::int64_t concurrent = order == Order::kConcurrentLanes ? lanes : 1;
  for (std::int64_t first = 0; first < lanes; first += concurrent) {
    for (std::int64_t m = 0; m < kMicrobatchesPerLane; ++m) {
      executions.emplace_back();
      for (std::int64_t lane = first; lane < first + concurrent; ++lane) {
        executions.back().microbatches.push_back(lane * kMicrobatchesPerLane + m);
      }
    }
  }
  return executions;
}

/// The gradient of microbatch m of a rank.
std::vector<float> gradient_of_rank(const nn::ParameterLayout& layout,
                                    const grid::Assignment& lanes, std::int64_t rank,
                                    std::int64_t m) {
  return gradient_of(layout, lanes.leaf(rank, m / kMicrobatchesPerLane), m % kMicrobatchesPerLane);
}

/// Hands the gradients of concurrent microbatches to the reducer, layer by layer, as a stage does.
void hand_over(GradientReducer& reducer, const nn::ParameterLayout& layout,
               const grid::Assignment& lanes, std::int64_t rank, const Execution& execution) {
  const auto& [concurrent, layers] = execution;
  std::vector<nn::GradientSink::Target> targets;
  std::vector<std::vector<float>> gradients;
  for (const std::int64_t m : concurrent) {
    targets.push_back(reducer.begin_microbatch(m, layers));
    gradients.push_back(gradient_of_rank(layout, lanes, rank, m));
  }
  for (std::int64_t layer = layers.end; layer-- > layers.begin;) {
    for (std::size_t k = 0; k < concurrent.size(); ++k) {
      const bool adds = targets[k].accumulate == ops::Accumulate::kAdd;
      const std::span<float> out = targets[k].gradients.host<float>();
      for (const nn::PlacedParameter& placed : layout.parameters) {
        for (std::int64_t i = 0; placed.spec.layer == layer && i < placed.spec.shape.count(); ++i) {
          const auto at = static_cast<std::size_t>(placed.offset + i);
          out[at] = adds ? out[at] + gradients[k][at] : gradients[k][at];
        }
      }
      reducer.layer_done(concurrent[k], layer);
    }
  }
}

/// Two steps of the own lanes, so that what the first leaves in the accumulators must not show in
/// the second.
void reduce_twice(GradientReducer& reducer, const nn::ParameterLayout& layout,
                  const grid::Assignment& lanes, std::int64_t rank, Order order) {
  for (int step = 0; step < 2; ++step) {
    for (const Execution& execution : executions_of(lanes.rounds(), order)) {
      hand_over(reducer, layout, lanes, rank, execution);
    }
    reducer.finish();
  }
}

struct Reduction {
  std::int64_t lanes;
  std::int64_t ranks;
  std::int64_t bucket;
  Order order;
  bool interleaved = false;
};

/// Reduces the lanes' gradients on threads. wrong(sums, owned) counts a rank's wrong elements,
/// `owned` the indices that it holds the sums of.
template <typename Wrong>
void expect_sums(const nn::ParameterLayout& layout, const Reduction& of, comm::Summation summation,
                 const Wrong& wrong) {
  const BucketPlan plan(layout, of.ranks, of.bucket);
  const auto lanes = of.interleaved
                         ? grid::Assignment::interleaved(grid::SumTree(of.lanes), of.ranks)
                         : grid::Assignment::blocked(grid::SumTree(of.lanes), of.ranks);
  const GradientReducer::Sizes sizes{.elements = layout.elements,
                                     .microbatches_per_lane = kMicrobatchesPerLane,
                                     .summation = summation,
                                     .joins_lanes = of.order == Order::kConcurrentLanes};
  comm::run_in_process_ranks(of.ranks, [&](comm::Communicator& world) {
    ops::Context context(1);
    GradientReducer reducer(context, world, lanes, plan, sizes);
    reduce_twice(reducer, layout, lanes, world.rank(), of.order);
    std::vector<std::size_t> owned;
    for (const OwnedPiece& piece : Ownership{layout, plan, world.rank()}.pieces()) {
      for (std::int64_t i = 0; i < piece.range.count(); ++i) {
        owned.push_back(static_cast<std::size_t>(piece.arena_offset + i));
      }
    }
    EXPECT_EQ(wrong(reducer.sums().host<float>(), owned), 0)
        << of.lanes << (of.interleaved ? " interleaved" : "") << " lanes, rank " << world.rank()
        << " of " << of.ranks << ", buckets of " << of.bucket;
  });
}

void expect_tree_sums(const Reduction& of) {
  const nn::ParameterLayout layout = layout_for(of.order);
  const std::vector<float> expected = expected_sum(layout, 0, of.lanes);
  expect_sums(layout, of, comm::Summation::kInvariant,
              [&](std::span<const float> sums, const std::vector<std::size_t>& owned) {
                return std::count_if(owned.begin(), owned.end(),
                                     [&](std::size_t at) { return sums[at] != expected[at]; });
              });
}

class GradientReducerOrders : public testing::TestWithParam<Order> {};

INSTANTIATE_TEST_SUITE_P(Orders, GradientReducerOrders,
                         testing::Values(Order::kLaneAfterLane, Order::kConcurrentLanes,
                                         Order::kLastChunkAhead, Order::kFirstChunkAhead),
                         testing::PrintToStringParamName());

TEST_P(GradientReducerOrders, GiveTheBitsOfTheTreeOnEveryNumberOfRanks) {
  // More buckets than are in flight at once, a few, and a single one.
  for (const std::int64_t bucket : {1024, 4096, 1 << 20}) {
    for (std::int64_t lanes = 1; lanes <= 6; ++lanes) {
      for (std::int64_t ranks = 1; ranks <= lanes; ++ranks) {
        if (lanes % ranks == 0) {
          expect_tree_sums({lanes, ranks, bucket, GetParam()});
          expect_tree_sums({lanes, ranks, bucket, GetParam(), true});
        }
      }
    }
  }
}

/// The sums of the library: within a rank microbatches in order, over ranks in any.
void expect_library_sums(const Reduction& of) {
  const nn::ParameterLayout layout = layout_for(of.order);
  std::vector<double> expected(static_cast<std::size_t>(layout.elements), 0.0);
  std::vector<double> magnitude(expected.size(), 0.0);
  std::vector<float> in_order(expected.size(), 0.0F);
  for (const Execution& execution : executions_of(of.lanes, of.order)) {
    if (execution.layers.begin > 0) {
      continue;  // the other chunk has its microbatches in the same order
    }
    for (const std::int64_t m : execution.microbatches) {
      const std::vector<float> gradient =
          gradient_of(layout, m / kMicrobatchesPerLane, m % kMicrobatchesPerLane);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += static_cast<double>(gradient[i]);
        magnitude[i] += std::fabs(static_cast<double>(gradient[i]));
        in_order[i] += gradient[i];
      }
    }
  }
  // Norms are sums over whole blocks: what lies between parameters must stay zero.
  std::vector<bool> in_gap(expected.size(), true);
  for (const nn::PlacedParameter& placed : layout.parameters) {
    std::fill_n(in_gap.begin() + placed.offset, placed.shape.count(), false);
  }
  expect_sums(layout, of, comm::Summation::kLibrary,
              [&](std::span<const float> sums, const std::vector<std::size_t>& owned) {
                std::int64_t wrong = 0;
                for (const std::size_t at : owned) {
                  // A rounding of at most 2^-24 of a partial sum in each addition.
                  const double bound = static_cast<double>(of.lanes * kMicrobatchesPerLane) *
                                       0x1p-24 * magnitude[at];
                  wrong += std::fabs(static_cast<double>(sums[at]) - expected[at]) <= bound ? 0 : 1;
                  wrong += of.ranks > 1 || sums[at] == in_order[at] ? 0 : 1;
                }
                for (std::size_t i = 0; i < sums.size(); ++i) {
                  wrong += in_gap[i] && sums[i] != 0.0F ? 1 : 0;
                }
                return wrong;
              });
}

TEST_P(GradientReducerOrders, UseTheLibrarysSumsInFastMode) {
  for (const std::int64_t bucket : {1024, 4096, 1 << 20}) {
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      expect_library_sums({ranks, ranks, bucket, GetParam()});
    }
    expect_library_sums({4, 2, bucket, GetParam()});
    expect_library_sums({3, 1, bucket, GetParam()});
  }
}

TEST(GradientReducer, FastModeNeedsOneAccumulatorAndNoReceiveMemory) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const BucketPlan plan(layout, 2, 4096);
  const std::vector<nn::MemoryItem> items = GradientReducer::memory(
      grid::Assignment::blocked(grid::SumTree(8), 2), 1, plan,
      {.elements = layout.elements, .summation = comm::Summation::kLibrary});
  EXPECT_EQ(items[0].bytes, layout.elements * 4);
  EXPECT_EQ(items[1].bytes, 0);
}

TEST(GradientReducer, MemoryIsAnAccumulatorALaneOfConcurrentLanes) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  for (std::int64_t lanes = 1; lanes <= 6; ++lanes) {
    for (std::int64_t ranks = 1; ranks <= lanes; ++ranks) {
      if (lanes % ranks == 0) {
        const std::vector<nn::MemoryItem> items = GradientReducer::memory(
            grid::Assignment::blocked(grid::SumTree(lanes), ranks), ranks - 1,
            BucketPlan(layout, ranks, 4096), {.elements = layout.elements, .joins_lanes = true});
        EXPECT_EQ(items[0].bytes, lanes / ranks * layout.elements * 4);
      }
    }
  }
}

TEST(GradientReducer, MemoryFollowsTheReductionSteps) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const GradientReducer::Sizes sizes{.elements = layout.elements};
  const auto bytes = [&](std::int64_t ranks, std::size_t item) {
    const auto lanes = grid::Assignment::blocked(grid::SumTree(4), ranks);
    return GradientReducer::memory(lanes, 0, BucketPlan(layout, ranks, 4096), sizes)[item].bytes;
  };
  // Three accumulators add up four lanes, two add up two, one holds one.
  EXPECT_EQ(bytes(1, 0), 3 * layout.elements * 4);
  EXPECT_EQ(bytes(2, 0), 2 * layout.elements * 4);
  EXPECT_EQ(bytes(4, 0), layout.elements * 4);
  // Four buckets in flight, a slice from each other rank.
  EXPECT_EQ(bytes(1, 1), 0);
  EXPECT_EQ(bytes(2, 1), 4 * 1 * 2048 * 4);
  EXPECT_EQ(bytes(4, 1), 4 * 3 * 1024 * 4);
}

}  // namespace
}  // namespace strata::optim::test::gradient_reducer_test
