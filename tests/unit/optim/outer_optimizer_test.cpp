#include "strata/optim/outer_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/dtype.hpp"
#include "strata/core/random.hpp"

#include "counting_communicator.hpp"
#include "in_process.hpp"
#include "layouts.hpp"

namespace strata::optim::test::outer_optimizer_test {
namespace {

constexpr std::int64_t kIslands = 4;

/// Four layers of mixed sizes and one of running averages.
nn::ParameterLayout mixed_layout() {
  std::vector<nn::ParameterSpec> specs;
  for (std::size_t i = 0; i < kMixed.size(); ++i) {
    specs.push_back({.name = "p" + std::to_string(i),
                     .shape = Shape{kMixed[i]},
                     .layer = static_cast<std::int64_t>(i / 2)});
  }
  specs.push_back(
      {.name = "mean", .shape = Shape{70}, .layer = 3, .rule = nn::ParameterRule::kAverage});
  return nn::layout_of(specs, grid::Range{0, 4});
}

struct Case {
  OuterOptions options;
  std::vector<grid::Range> fragments{{0, 4}};
  std::int64_t rounds = 3;
};

/// An element's weight at the start, and by how much an island has changed it in a round.
double first_weight(std::int64_t element) {
  return std::sin(0.7 * static_cast<double>(element));
}
double change(std::int64_t island, std::int64_t round, std::int64_t element) {
  const RandomStream stream(5, RandomPurpose::kSynthesise,
                            static_cast<std::uint64_t>(100 * round + island));
  const auto word = static_cast<std::int32_t>(stream.words(static_cast<std::uint64_t>(element))[0]);
  return 0.1 * static_cast<double>(word) * 0x1p-31;
}

/// Calls use(element of the arena, its index in the tensor) for a piece.
template <typename Use>
void for_elements(const OuterOptimizer::Piece& piece, const Use& use) {
  for (std::int64_t i = 0; i < piece.owned.range.count(); ++i) {
    use(static_cast<std::size_t>(piece.owned.arena_offset + i), static_cast<std::size_t>(i));
  }
}

/// What a rank has after each round, by element of the arena; float64.
struct Result {
  std::vector<std::vector<double>> weights;
  std::vector<double> sent;      ///< sums over rounds and islands of the differences
  std::vector<double> kept;      ///< the errors at the end, of all
  comm::TracedMessages traffic;  ///< of all rounds
};

/// What a rank of the group sends in a round of all islands, recorded without doing it.
comm::TracedMessages recorded_round(std::int64_t ranks, std::int64_t rank,
                                    const OuterShare& share) {
  comm::Trace trace;
  comm::PlannedGroup group(trace, {.rank = rank, .ranks = ranks, .in_node = ranks});
  OuterOptimizer outer(group, share, ops::Context::planned(trace));
  for (std::size_t f = 0; f < share.fragments.size(); ++f) {
    outer.start(f, {0, 1, 2, 3});
    outer.finish();
  }
  return comm::sent(trace.take(), grid::Axis::kData);
}

template <typename T>
Result train(comm::Communicator& world, const Case& c, const nn::ParameterLayout& layout) {
  nn::test::CountingCommunicator group(world);
  const BucketPlan plan(layout, 1, 2048);
  const std::int64_t own = kIslands / world.size();
  const OuterShare share{
      .options = c.options,
      .islands = {.count = kIslands, .own = {world.rank() * own, (world.rank() + 1) * own}},
      .owned = {layout, plan},
      .fragments = c.fragments,
      .dtype = kDTypeOf<T>};
  OuterOptimizer outer(group, share);
  const auto size = static_cast<std::size_t>(layout.elements);
  Result result{.sent = std::vector<double>(size), .kept = std::vector<double>(size)};
  for (const OuterOptimizer::Piece& piece : outer.pieces()) {
    const auto weights = outer.weights(piece).host<T>();
    for_elements(piece, [&](std::size_t element, std::size_t i) {
      weights[i] = static_cast<T>(first_weight(static_cast<std::int64_t>(element)));
    });
  }
  for (std::int64_t round = 0; round < c.rounds; ++round) {
    for (std::size_t f = 0; f < c.fragments.size(); ++f) {
      for (std::int64_t i = 0; i < own; ++i) {
        outer.add(f, i, [&](const OuterOptimizer::Piece& piece, const TensorView& into) {
          const auto before = outer.weights(piece).host<T>();
          for_elements(piece, [&](std::size_t element, std::size_t at) {
            const auto by = static_cast<T>(
                change(share.islands.own.begin + i, round, static_cast<std::int64_t>(element)));
            into.host<T>()[at] = before[at] - by;
            result.sent[element] += static_cast<double>(before[at] - (before[at] - by));
          });
        });
      }
      outer.start(f, {0, 1, 2, 3});
      outer.advance();
      outer.finish();
    }
    result.weights.emplace_back(size);
    for (const OuterOptimizer::Piece& piece : outer.pieces()) {
      for_elements(piece, [&](std::size_t element, std::size_t at) {
        result.weights.back()[element] = static_cast<double>(outer.weights(piece).host<T>()[at]);
      });
    }
  }
  if (outer.rounds()) {
    for (const OuterOptimizer::Piece& piece : outer.pieces()) {
      for_elements(piece, [&](std::size_t element, std::size_t at) {
        for (std::int64_t i = 0; i < own; ++i) {
          result.kept[element] +=
              static_cast<double>(outer.difference_error(i, piece).host<T>()[at]);
        }
        result.kept[element] += static_cast<double>(outer.sum_error(piece).host<T>()[at]);
      });
    }
  }
  result.traffic = group.sent();
  const comm::TracedMessages round = recorded_round(world.size(), world.rank(), share);
  EXPECT_EQ(result.traffic.messages, c.rounds * round.messages);
  EXPECT_EQ(result.traffic.bytes, static_cast<double>(c.rounds) * round.bytes);
  // Each element is summed by one rank.
  std::vector<std::int64_t> summed{0};
  for (const OuterOptimizer::Piece& piece : outer.summed_pieces()) {
    summed.front() += piece.owned.range.count();
  }
  std::int64_t all = 0;
  for (const OuterOptimizer::Piece& piece : outer.pieces()) {
    all += piece.owned.range.count();
  }
  std::vector<std::int64_t> of_ranks(static_cast<std::size_t>(world.size()));
  world.all_gather(comm::payload_of(std::span(std::as_const(summed))),
                   comm::payload_of(std::span(of_ranks)));
  EXPECT_EQ(std::accumulate(of_ranks.begin(), of_ranks.end(), std::int64_t{0}), all);
  return result;
}

template <typename T>
Result on_one_rank(const Case& c, const nn::ParameterLayout& layout) {
  Result result;
  comm::run_in_process_ranks(
      1, [&](comm::Communicator& world) { result = train<T>(world, c, layout); });
  return result;
}

const std::vector<std::vector<grid::Range>> kFragments{{{0, 4}}, {{0, 1}, {1, 3}, {3, 4}}};

template <typename T>
void expect_equal_bits() {
  const nn::ParameterLayout layout = mixed_layout();
  for (int packing = 0; packing <= static_cast<int>(ops::Packing::kInt4); ++packing) {
    for (const auto& fragments : kFragments) {
      const Case c{.options = {.exchange = static_cast<ops::Packing>(packing)},
                   .fragments = fragments};
      SCOPED_TRACE(name_of(c.options.exchange));
      const Result expected = on_one_rank<T>(c, layout);
      for (const std::int64_t ranks : {2, 4}) {
        comm::run_in_process_ranks(ranks, [&](comm::Communicator& world) {
          EXPECT_EQ(train<T>(world, c, layout).weights, expected.weights)
              << "rank " << world.rank() << " of " << ranks;
        });
      }
    }
  }
}

TEST(OuterOptimizer, GivesEqualBitsOnEveryNumberOfRanks) {
  expect_equal_bits<float>();
  expect_equal_bits<double>();
}

TEST(OuterOptimizer, FollowsTheFormula) {
  const nn::ParameterLayout layout = mixed_layout();
  struct Kind {
    double rate;
    double momentum;
  };
  for (const Kind& kind : {Kind{1.0, 0.0}, Kind{0.7, 0.9}, Kind{0.4, 0.5}}) {
    for (const auto& fragments : kFragments) {
      const Case c{.options = {.rate = kind.rate, .momentum = kind.momentum},
                   .fragments = fragments,
                   .rounds = 5};
      const Result found = on_one_rank<double>(c, layout);
      for (const nn::PlacedParameter& placed : layout.parameters) {
        const bool average = placed.spec.rule == nn::ParameterRule::kAverage;
        for (std::int64_t i = 0; i < placed.shape.count(); ++i) {
          const std::int64_t element = placed.offset + i;
          double weight = first_weight(element);
          double buffer = 0.0;
          for (std::int64_t round = 0; round < c.rounds; ++round) {
            double gradient = 0.0;
            for (std::int64_t island = 0; island < kIslands; ++island) {
              gradient += change(island, round, element) / kIslands;
            }
            // torch.optim.SGD with nesterov=True.
            buffer = kind.momentum * buffer + gradient;
            weight -= average ? gradient : kind.rate * (gradient + kind.momentum * buffer);
            ASSERT_NEAR(
                found.weights[static_cast<std::size_t>(round)][static_cast<std::size_t>(element)],
                weight, 1e-14)
                << placed.spec.name << " " << i << " after round " << round;
          }
        }
      }
    }
  }
}

TEST(OuterOptimizer, WhatIsSentSumsToTheDifferences) {
  const nn::ParameterLayout layout = mixed_layout();
  for (const ops::Packing packing :
       {ops::Packing::kBfloat16, ops::Packing::kInt8, ops::Packing::kInt4}) {
    SCOPED_TRACE(name_of(packing));
    const Case c{.options = {.rate = 1.0, .momentum = 0.0, .exchange = packing}, .rounds = 40};
    const Result found = on_one_rank<double>(c, layout);
    double largest = 0.0;
    for (const nn::PlacedParameter& placed : layout.parameters) {
      for (std::int64_t i = 0; i < placed.shape.count(); ++i) {
        const auto element = static_cast<std::size_t>(placed.offset + i);
        const double applied =
            kIslands * (first_weight(placed.offset + i) - found.weights.back()[element]);
        ASSERT_NEAR(applied + found.kept[element], found.sent[element], 1e-12) << element;
        largest = std::max(largest, std::abs(applied - found.sent[element]));
      }
    }
    // Differences are at most 0.1 and the error, the sum four times that, in steps of 1/7 of the
    // largest of a group: half a step of four differences and of the sum.
    const double step = 0.1 / 7.0 * 1.1;
    EXPECT_LE(largest, 0.5 * (kIslands * step + kIslands * step));
    EXPECT_GT(largest, 0.0);
  }
}

TEST(OuterOptimizer, SendsOwnDifferencesAndOneSum) {
  const nn::ParameterLayout layout = mixed_layout();
  const BucketPlan plan(layout, 1, 2048);
  struct Sent {
    std::int64_t ranks;
    std::int64_t rank;
    std::size_t fragments;  ///< of kFragments
    std::int64_t messages;
    double blocks;  ///< of 1024 numbers
  };
  // 14 blocks: of layers 0 to 3 are 4, 2, 7 and 1. The ranks sum 7 and 7 of them, or 4, 4, 3 and 3.
  for (const Sent& sent : {Sent{1, 0, 0, 0, 0.0}, Sent{2, 0, 0, 3, 3.0 * 7.0},
                           Sent{4, 0, 0, 6, 10.0 + 3.0 * 4.0}, Sent{4, 3, 0, 6, 11.0 + 3.0 * 3.0},
                           Sent{2, 1, 1, 8, 2.0 * (2.0 + 5.0 + 1.0) + 2.0 + 4.0}}) {
    const std::int64_t own = kIslands / sent.ranks;
    OuterShare share{
        .islands = {.count = kIslands, .own = {sent.rank * own, (sent.rank + 1) * own}},
        .owned = {layout, plan},
        .fragments = kFragments[sent.fragments]};
    for (const double bytes : {4096.0, 8.0 * 132.0}) {
      const comm::TracedMessages found = recorded_round(sent.ranks, sent.rank, share);
      EXPECT_EQ(found.messages, sent.messages) << sent.ranks << " ranks";
      EXPECT_EQ(found.bytes, sent.blocks * bytes) << sent.ranks << " ranks";
      share.options.exchange = ops::Packing::kInt8;
    }
  }
}

TEST(OuterOptimizer, PlansItsMemory) {
  // Two layers; 2 islands of 4 on each of 2 ranks. Fragments of 3 blocks of 1024.
  const nn::ParameterLayout layout = layout_with({2000, 900, 1500, 4});
  const BucketPlan plan(layout, 1, 2048);
  const std::vector<grid::Range> fragments{{0, 1}, {1, 2}};
  const auto total = [&](const OuterOptions& options) {
    std::vector<std::int64_t> bytes;
    for (const nn::MemoryItem& item :
         OuterOptimizer::memory(2, {.options = options,
                                   .islands = {.count = 4, .own = {0, 2}},
                                   .owned = {layout, plan},
                                   .fragments = fragments})) {
      bytes.push_back(item.bytes);
    }
    return bytes;
  };
  constexpr std::int64_t kAll = 6 * 1024 * 4;  // blocks: 2, 1, 2 and 1
  constexpr std::int64_t kLargest = 3 * 1024 * 4;
  constexpr std::int64_t kSlice = 2 * 1024 * 4;  // of 3 blocks
  EXPECT_EQ(total({.momentum = 0.0}),
            (std::vector<std::int64_t>{
                kAll, (2 * kLargest + 4 * kSlice) + (2 * kLargest + 4 * kSlice + kLargest)}));
  // int8: 132 bytes of 512; an error of each own island and of the sums.
  EXPECT_EQ(total({.exchange = ops::Packing::kInt8}),
            (std::vector<std::int64_t>{
                5 * kAll,
                (2 * kLargest + 4 * kSlice) + (2 * kLargest + 4 * kSlice + kLargest) / 512 * 132}));
}

}  // namespace
}  // namespace strata::optim::test::outer_optimizer_test
