#include "paced_group.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/clock.hpp"

#include "comm_cases.hpp"
#include "in_process.hpp"

namespace strata::comm::test::paced_group_test {
namespace {

/// The world with ranks in islands of `island_ranks`.
std::unique_ptr<PacedGroup> paced(Communicator& world, std::int64_t island_ranks,
                                  EmulatedLink& link) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<bool> across(all.size());
  for (const std::int64_t rank : all) {
    across[static_cast<std::size_t>(rank)] = rank / island_ranks != world.rank() / island_ranks;
  }
  return std::make_unique<PacedGroup>(world.subgroup(all, world.name()), link, across);
}

TEST(PacedGroup, PassesTheCasesOfEveryCommunicator) {
  for (const CommCase& comm_case : comm_cases()) {
    for (const std::int64_t ranks : {1, 2, 4}) {
      run_in_process_ranks(ranks, [&](Communicator& world) {
        EmulatedLink link(1e9, 1e-5);
        const std::unique_ptr<PacedGroup> group = paced(world, 1, link);
        const std::string report = run_case(comm_case, *group);
        if (world.rank() == 0) {
          EXPECT_EQ(report, "");
        }
      });
    }
  }
}

constexpr double kBytesPerSecond = 1e5;
constexpr double kDelay = 0.01;
constexpr std::int64_t kBytes = 1000;
constexpr double kMessage = kBytes / kBytesPerSecond;

using Bytes = std::vector<std::uint8_t>;

TensorView view(Bytes& bytes) {
  return payload_of(std::span(bytes));
}

struct Case {
  std::string name;
  std::int64_t island_ranks;
  void (*act)(Communicator& group);
  std::int64_t sent_bytes;  ///< by rank 0
  double least_seconds;     ///< on rank 0
};

void exchange_with_all(Communicator& group) {
  Bytes mine(kBytes);
  std::vector<Bytes> theirs(static_cast<std::size_t>(group.size()), Bytes(kBytes));
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (std::int64_t r = 0; r < group.size(); ++r) {
    if (r != group.rank()) {
      sends.push_back({.payload = view(mine), .peer = r});
      receives.push_back({.payload = view(theirs[static_cast<std::size_t>(r)]), .peer = r});
    }
  }
  group.exchange(sends, receives, Tag::kReduce).wait();
}

/// Rank 0 sends two messages to rank 3, which share rank 0's link.
void send_two(Communicator& group) {
  Bytes first(kBytes);
  Bytes second(kBytes);
  if (group.rank() == 0) {
    Request one = group.send(view(first), 3, Tag::kGather);
    group.send(view(second), 3, Tag::kGather).wait();
    EXPECT_TRUE(one.test());
  } else if (group.rank() == 3) {
    Request one = group.receive(view(first), 0, Tag::kGather);
    group.receive(view(second), 0, Tag::kGather).wait();
    EXPECT_TRUE(one.test());
  }
}

void gather(Communicator& group) {
  Bytes mine(kBytes);
  Bytes all(static_cast<std::size_t>(group.size() * kBytes));
  group.all_gather(view(mine), view(all));
}

void broadcast(Communicator& group) {
  Bytes payload(kBytes);
  group.broadcast(view(payload), 0);
}

void all_reduce(Communicator& group) {
  std::vector<double> sum(kBytes / sizeof(double));
  group.all_reduce({std::span(sum), Shape{std::ssize(sum)}});
}

void reduce_scatter(Communicator& group) {
  std::vector<double> sum(kBytes / sizeof(double));
  const auto quarter = std::ssize(sum) / 4;  // the last slice is longer
  const std::vector<grid::Range> slices{{0, quarter},
                                        {quarter, 2 * quarter},
                                        {2 * quarter, 3 * quarter},
                                        {3 * quarter, std::ssize(sum)}};
  group.reduce_scatter({std::span(sum), Shape{std::ssize(sum)}}, slices).wait();
}

/// Ranks 0 and 2 are in different islands, ranks 0 and 1 are not.
void barrier_of_a_subgroup(Communicator& group) {
  const std::vector<std::int64_t> members =
      group.rank() % 2 == 0 ? std::vector<std::int64_t>{0, 2} : std::vector<std::int64_t>{1, 3};
  group.subgroup(members, "pair")->barrier();
}

TEST(PacedGroup, HoldsMessagesBackAndCountsThem) {
  const std::vector<Case> cases{
      {"exchange, each rank an island", 1, exchange_with_all, 3 * kBytes, 3 * kMessage + kDelay},
      {"exchange, islands of two", 2, exchange_with_all, 2 * kBytes, 2 * kMessage + kDelay},
      {"exchange, one island", 4, exchange_with_all, 0, 0.0},
      {"two messages", 2, send_two, 2 * kBytes, 2 * kMessage + kDelay},
      {"two messages in an island", 4, send_two, 0, 0.0},
      {"barrier", 2, [](Communicator& group) { group.barrier(); }, 0, kDelay},
      {"barrier of a subgroup", 2, barrier_of_a_subgroup, 0, kDelay},
      {"all-gather", 2, gather, 2 * kBytes, 2 * kMessage + kDelay},
      {"broadcast", 2, broadcast, 2 * kBytes, 2 * kMessage + kDelay},
      {"all-reduce", 2, all_reduce, kBytes, kMessage + kDelay},
      {"reduce-scatter", 2, reduce_scatter, 2 * 31 * 8 + 8, 63 * 8 / kBytesPerSecond + kDelay},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    run_in_process_ranks(4, [&](Communicator& world) {
      EmulatedLink link(kBytesPerSecond, kDelay);
      const std::unique_ptr<PacedGroup> group = paced(world, test.island_ranks, link);
      const double begin = now_seconds();
      test.act(*group);
      if (world.rank() == 0) {
        EXPECT_GE(now_seconds() - begin, test.least_seconds);
        EXPECT_EQ(link.sent_bytes(), test.sent_bytes);
        EXPECT_EQ(link.peak_bytes(), test.sent_bytes);
      }
    });
  }
}

TEST(EmulatedLink, CarriesOneMessageAfterTheOtherInEachDirection) {
  EmulatedLink link(100.0, 0.5);
  EXPECT_DOUBLE_EQ(link.carry(200, 0, 10.0), 12.5);
  EXPECT_DOUBLE_EQ(link.carry(0, 100, 10.0), 11.5);    // the other direction is free
  EXPECT_DOUBLE_EQ(link.carry(100, 100, 11.0), 13.5);  // behind the first
  EXPECT_DOUBLE_EQ(link.carry(0, 0, 11.0), 11.5);      // a barrier has no bytes
  EXPECT_DOUBLE_EQ(link.carry(100, 0, 20.0), 21.5);
  EXPECT_EQ(link.sent_bytes(), 400);
  EXPECT_EQ(link.peak_bytes(), 200);
  EXPECT_DOUBLE_EQ(link.carry(150, 0, 20.9), 22.9 + 0.1);
  EXPECT_EQ(link.peak_bytes(), 250);

  EmulatedLink without_rate(0.0, 0.25);
  EXPECT_DOUBLE_EQ(without_rate.carry(1000000, 1000000, 1.0), 1.25);
}

}  // namespace
}  // namespace strata::comm::test::paced_group_test
