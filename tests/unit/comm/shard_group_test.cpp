#include "strata/comm/shard_group.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strata/core/random.hpp"

#include "in_process.hpp"

namespace strata::comm::test::shard_group_test {
namespace {

constexpr std::int64_t kColumns = 5;

/// Numbers of very different sizes, so that every order of addition gives other bits.
double element(std::int64_t shard, std::int64_t index) {
  const RandomStream stream(31, RandomPurpose::kSynthesise, static_cast<std::uint64_t>(shard));
  const double number = stream.uniform(static_cast<std::uint64_t>(2 * index)) - 0.5;
  const double exponent = 40.0 * stream.uniform(static_cast<std::uint64_t>(2 * index + 1)) - 20.0;
  return std::ldexp(number, static_cast<int>(exponent));
}

/// The sum of an element over the shards of a node, by halves.
template <typename T>
T sum_over(const grid::Range& shards, std::int64_t index) {
  if (shards.count() == 1) {
    return static_cast<T>(element(shards.begin, index));
  }
  const std::int64_t middle = shards.begin + shards.count() / 2;
  return sum_over<T>({shards.begin, middle}, index) + sum_over<T>({middle, shards.end}, index);
}

/// The accumulators and receive memory of one rank, as a layer asks for them.
template <typename T>
class Memory {
 public:
  Memory(const ShardGroup& group, std::int64_t rows)
      : received_(static_cast<std::size_t>(
            ShardGroup::receive_elements(group.shards(), group.own(), rows, kColumns))) {
    const std::int64_t count = ShardGroup::accumulators(group.shards(), group.own());
    memory_.resize(static_cast<std::size_t>(count),
                   std::vector<T>(static_cast<std::size_t>(rows * kColumns), T{-77}));
    for (std::vector<T>& accumulator : memory_) {
      accumulators_.push_back({std::span(accumulator), Shape{rows, kColumns}});
    }
  }

  [[nodiscard]] std::span<const TensorView> accumulators() const { return accumulators_; }
  [[nodiscard]] TensorView received() {
    return {std::span(received_), Shape{std::ssize(received_)}};
  }
  [[nodiscard]] const std::vector<T>& sum() const { return memory_.front(); }

 private:
  std::vector<std::vector<T>> memory_;
  std::vector<TensorView> accumulators_;
  std::vector<T> received_;
};

template <typename T>
void make_partial_sums(ops::Context& context, const ShardGroup& group, const Memory<T>& memory) {
  std::int64_t next = group.own().begin;
  group.partial_sums(context, memory.accumulators(),
                     [&](std::int64_t shard, const TensorView& accumulator) {
                       EXPECT_EQ(shard, next++);
                       const std::span<T> values = accumulator.host<T>();
                       for (std::size_t i = 0; i < values.size(); ++i) {
                         values[i] = static_cast<T>(element(shard, static_cast<std::int64_t>(i)));
                       }
                     });
  EXPECT_EQ(next, group.own().end);
}

template <typename T>
void all_reduce(ops::Context& context, ShardGroup& group, Memory<T>& memory) {
  OrderedReduction::Pending sum = group.begin_sum(memory.accumulators(), memory.received());
  Request gather = group.end_all_reduce(context, sum, memory.accumulators().front());
  group.wait(gather);
}

template <typename T>
void expect_sums(const std::vector<T>& found, std::int64_t shards, const grid::Range& rows) {
  for (std::int64_t i = rows.begin * kColumns; i < rows.end * kColumns; ++i) {
    ASSERT_EQ(found[static_cast<std::size_t>(i)], sum_over<T>({0, shards}, i)) << "element " << i;
  }
}

template <typename T>
void expect_all_reduced(ShardGroup& group, std::int64_t rows) {
  ops::Context context(1);
  Memory<T> memory(group, rows);
  make_partial_sums(context, group, memory);
  all_reduce(context, group, memory);
  expect_sums(memory.sum(), group.shards(), {0, rows});
}

/// Calls body(group, rows) on every rank, for every number of shards that 1, 2 or 4 ranks divide,
/// and for even and uneven numbers of rows.
template <typename Body>
void for_each_group(const Body& body) {
  for (std::int64_t shards = 1; shards <= 8; ++shards) {
    for (const std::int64_t ranks : {1, 2, 4}) {
      if (shards % ranks != 0) {
        continue;
      }
      run_in_process_ranks(ranks, [&](Communicator& world) {
        for (const std::int64_t rows : {12, 7, 3}) {
          SCOPED_TRACE(
              fmt::format("rank {} of {}, {} shards, {} rows", world.rank(), ranks, shards, rows));
          const ProgressEngine engine;
          ShardGroup group(world, engine, shards, Summation::kInvariant);
          body(group, rows);
        }
      });
    }
  }
}

TEST(ShardGroup, AssignsShardsAndRowsInOrder) {
  run_in_process_ranks(4, [](Communicator& world) {
    const ProgressEngine engine;
    const ShardGroup group(world, engine, 8, Summation::kInvariant);
    EXPECT_EQ(group.shards(), 8);
    EXPECT_EQ(group.ranks(), 4);
    EXPECT_EQ(group.own(), (grid::Range{2 * world.rank(), 2 * world.rank() + 2}));
    EXPECT_EQ(group.own_rows(10), grid::even_part(10, 4, world.rank()));
  });
  const ShardGroup alone(8);
  EXPECT_EQ(alone.ranks(), 1);
  EXPECT_EQ(alone.own(), (grid::Range{0, 8}));
  EXPECT_EQ(alone.own_rows(10), (grid::Range{0, 10}));
}

TEST(ShardGroup, AllReducesToTheSameBitsOnEveryNumberOfRanks) {
  for_each_group([](ShardGroup& group, std::int64_t rows) {
    expect_all_reduced<float>(group, rows);
    expect_all_reduced<double>(group, rows);
  });
}

TEST(ShardGroup, WithoutARankBesideItAddsAlone) {
  for (std::int64_t shards = 1; shards <= 8; ++shards) {
    ShardGroup group(shards);
    EXPECT_EQ(Memory<float>(group, 6).received().count(), 0);
    expect_all_reduced<float>(group, 6);
    EXPECT_EQ(group.exposed_seconds(), 0.0);
  }
}

TEST(ShardGroup, ReduceScattersItsOwnRows) {
  for_each_group([](ShardGroup& group, std::int64_t rows) {
    ops::Context context(1);
    Memory<float> memory(group, rows);
    make_partial_sums(context, group, memory);
    OrderedReduction::Pending sum = group.begin_sum(memory.accumulators(), memory.received());
    group.end_reduce_scatter(context, sum, memory.accumulators().front());
    expect_sums(memory.sum(), group.shards(), group.own_rows(rows));
  });
}

TEST(ShardGroup, GathersRows) {
  for_each_group([](ShardGroup& group, std::int64_t rows) {
    std::vector<float> values(static_cast<std::size_t>(rows * kColumns), -77.0F);
    const grid::Range own = group.own_rows(rows);
    for (std::int64_t i = own.begin * kColumns; i < own.end * kColumns; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<float>(i);
    }
    Request gather = group.begin_gather_rows({std::span(values), Shape{rows, kColumns}});
    group.wait(gather);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(i));
    }
  });
}

TEST(ShardGroup, GathersPartsInOrderOfShards) {
  for_each_group([](ShardGroup& group, std::int64_t rows) {
    const std::int64_t part = 3 * rows;
    std::vector<double> all(static_cast<std::size_t>(group.shards() * part), -77.0);
    const TensorView everything{std::span(all), Shape{group.shards(), rows, 3}};
    const TensorView own =
        everything.flat_slice(group.own().begin * part, group.own().count() * part);
    std::vector<double> mine;
    for (std::int64_t i = 0; i < own.count(); ++i) {
      mine.push_back(static_cast<double>(group.own().begin * part + i));
    }
    if (group.ranks() == 1) {
      std::copy(mine.begin(), mine.end(), all.begin());
      group.all_gather_parts(own, everything);
    } else {
      group.all_gather_parts(
          ConstTensorView{std::span(std::as_const(mine)), Shape{group.own().count(), rows, 3}},
          everything);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], static_cast<double>(i));
    }
  });
}

TEST(ShardGroup, StepsAddOnePartAShardInTheSameOrder) {
  for (std::int64_t shards = 1; shards <= 8; ++shards) {
    const ShardGroup group(shards);
    std::vector<float> parts;
    for (std::int64_t s = 0; s < shards; ++s) {
      parts.push_back(static_cast<float>(element(s, 4)));
    }
    for (const ReductionStep& step : group.steps()) {
      parts[static_cast<std::size_t>(step.into)] += parts[static_cast<std::size_t>(step.from)];
    }
    EXPECT_EQ(parts.front(), sum_over<float>({0, shards}, 4));
  }
}

TEST(ShardGroup, LetsTheLibraryAddInFastMode) {
  for (const std::int64_t ranks : {1, 2, 4}) {
    run_in_process_ranks(ranks, [&](Communicator& world) {
      constexpr std::int64_t kRows = 7;
      ops::Context context(1);
      const ProgressEngine engine;
      ShardGroup group(world, engine, ranks, Summation::kLibrary);
      Memory<double> memory(group, kRows);
      make_partial_sums(context, group, memory);
      all_reduce(context, group, memory);
      for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
        const double sum = sum_over<double>({0, ranks}, i);
        double size = 0.0;
        for (std::int64_t s = 0; s < ranks; ++s) {
          size += std::abs(element(s, i));
        }
        EXPECT_NEAR(memory.sum()[static_cast<std::size_t>(i)], sum, 1e-15 * size);
      }
    });
  }
  run_in_process_ranks(2, [](Communicator& world) {
    EXPECT_THROW(ShardGroup(world, ProgressEngine(), 4, Summation::kLibrary), std::logic_error);
  });
}

TEST(ShardGroup, CountsTheSecondsOfItsMessages) {
  run_in_process_ranks(2, [](Communicator& world) {
    ops::Context context(1);
    const ProgressEngine engine;
    ShardGroup group(world, engine, 4, Summation::kInvariant);
    Memory<float> memory(group, 12);
    make_partial_sums(context, group, memory);
    EXPECT_EQ(group.exposed_seconds(), 0.0);
    all_reduce(context, group, memory);
    EXPECT_GT(group.exposed_seconds(), 0.0);
    group.reset_clock();
    EXPECT_EQ(group.exposed_seconds(), 0.0);
  });
}

TEST(ShardGroup, RefusesShardsThatItsRanksDoNotDivide) {
  run_in_process_ranks(2, [](Communicator& world) {
    EXPECT_THROW(ShardGroup(world, ProgressEngine(), 3, Summation::kInvariant), std::logic_error);
  });
}

}  // namespace
}  // namespace strata::comm::test::shard_group_test
