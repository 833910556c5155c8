#include "strata/optim/parameter_server.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/clock.hpp"

#include "in_process.hpp"
#include "layouts.hpp"

namespace strata::optim::parameter_server_test {
namespace {

using comm::Communicator;
using comm::run_in_process_ranks;
using test::kMixed;

constexpr std::int64_t kBucket = 2048;
constexpr double kRate = 0.5;
constexpr std::int64_t kSum = 1024;  ///< of exact sums: gradients are whole numbers below it

/// One rank's parameter server of weights that are zeros, and what it fetched.
class Rank {
 public:
  Rank(Communicator& world, std::int64_t servers, const AsyncOptions& options,
       const OptimizerOptions& optimizer = {})
      : layout_(test::layout_with(kMixed)),
        buckets_(layout_, servers, kBucket),
        server_(world, optimizer, options, layout_, buckets_, servers, DType::kFloat32) {}

  [[nodiscard]] ParameterServer& server() { return server_; }

  /// Fetches; returns the weights, of which all in one slice must be equal: each update adds one
  /// number to all of them, so that other weights were read in the midst of an update.
  std::vector<float> fetch(bool are_equal = true) {
    std::vector<float> weights(static_cast<std::size_t>(layout_.elements));
    server_.fetch([&](const OwnedPiece& piece, const ConstTensorView& fetched) {
      const std::span<const float> all = fetched.host<float>();
      if (are_equal && std::ranges::count(all, all.front()) != std::ssize(all)) {
        ++torn_;
      }
      std::ranges::copy(all, weights.begin() + piece.arena_offset);
    });
    return weights;
  }
  void push(float gradient) {
    server_.push([&](const OwnedPiece& /*piece*/,
                     const TensorView& into) { std::ranges::fill(into.host<float>(), gradient); },
                 kRate, 1.0);
  }
  [[nodiscard]] std::int64_t torn() const { return torn_; }
  [[nodiscard]] float weight(const std::vector<float>& weights, std::size_t parameter) const {
    return weights[static_cast<std::size_t>(layout_.parameters[parameter].offset)];
  }

 private:
  nn::ParameterLayout layout_;
  BucketPlan buckets_;
  ParameterServer server_;
  std::int64_t torn_ = 0;
};

struct Case {
  std::int64_t ranks;
  std::int64_t servers;
};

TEST(ParameterServer, AppliesEveryPushOnceAndShowsNoUpdateHalfDone) {
  constexpr int kPushes = 20;
  for (const Case& c : {Case{1, 1}, {2, 2}, {3, 1}, {4, 4}, {4, 2}}) {
    SCOPED_TRACE(std::to_string(c.ranks) + " ranks, " + std::to_string(c.servers) + " servers");
    run_in_process_ranks(c.ranks, [&](Communicator& world) {
      Rank rank(world, c.servers, {});
      rank.server().start();
      for (int i = 0; i < kPushes; ++i) {
        rank.fetch();
        rank.push(static_cast<float>(world.rank() + 1));
      }
      rank.server().finish_pushes();
      world.barrier();
      const std::vector<float> weights = rank.fetch();
      const auto ranks = static_cast<double>(c.ranks);
      for (std::size_t p = 0; p < kMixed.size(); ++p) {
        EXPECT_EQ(rank.weight(weights, p), -kRate * kPushes * ranks * (ranks + 1.0) / 2.0);
      }
      EXPECT_EQ(rank.torn(), 0);
      EXPECT_EQ(rank.server().updates(), kPushes * c.ranks);
      EXPECT_EQ(rank.server().counts().applied, world.rank() < c.servers ? kPushes * c.ranks : 0);
      rank.server().stop();
    });
  }
}

TEST(ParameterServer, ScalesOrDropsPushesBeyondTheBoundOfStaleness) {
  // Rank 1 fetches, rank 0 pushes four times, then rank 1 pushes: 4 updates stale.
  struct Rule {
    AsyncOptions options;
    double step;  ///< of the stale push, of a full one
  };
  for (const Rule& rule : {Rule{{}, 1.0},
                           {{.staleness = 4}, 1.0},
                           {{.staleness = 1}, 0.25},
                           {{.staleness = 3, .stale = Stale::kDrop}, 0.0},
                           {{.rate = StaleRate::kDivided}, 0.25}}) {
    SCOPED_TRACE(std::to_string(rule.options.staleness));
    run_in_process_ranks(2, [&](Communicator& world) {
      constexpr float kStale = 64.0F;
      Rank rank(world, 1, rule.options);
      rank.server().start();
      rank.fetch();
      world.barrier();
      if (world.rank() == 0) {
        for (int i = 0; i < 4; ++i) {
          rank.fetch();
          rank.push(1.0F);
          rank.server().finish_pushes();
        }
      }
      world.barrier();
      if (world.rank() == 1) {
        rank.push(kStale);
        rank.server().finish_pushes();
      }
      world.barrier();
      EXPECT_EQ(rank.weight(rank.fetch(), 0), -kRate * (4.0 + kStale * rule.step));
      if (world.rank() == 0) {
        const ParameterServer::Counts counts = rank.server().counts();
        EXPECT_EQ(counts.staleness[0], 4);
        EXPECT_EQ(counts.staleness[4], 1);
        EXPECT_EQ(counts.dropped, rule.step == 0.0 ? 1 : 0);
        EXPECT_EQ(counts.scaled, rule.options.staleness == 1 ? 1 : 0);
        EXPECT_LE(counts.most_applied, std::max<std::int64_t>(4, rule.options.staleness));
      }
      rank.server().stop();
    });
  }
}

TEST(ParameterServer, SendsOnlyBlocksThatAreNotZero) {
  run_in_process_ranks(2, [&](Communicator& world) {
    Rank rank(world, 2, {});
    rank.server().start();
    const std::vector<float> before = rank.fetch();
    const auto push = [&](std::int64_t from, std::int64_t to) {
      const std::int64_t sent = rank.server().pushed_bytes();
      rank.server().push(
          [&](const OwnedPiece& piece, const TensorView& into) {
            const std::span<float> all = into.host<float>();
            for (std::int64_t i = 0; i < std::ssize(all); ++i) {
              const std::int64_t element = piece.arena_offset + i;
              all[static_cast<std::size_t>(i)] = from <= element && element < to ? 1.0F : 0.0F;
            }
          },
          kRate, 1.0);
      return rank.server().pushed_bytes() - sent;
    };
    if (world.rank() == 1) {
      const std::int64_t rows = push(64, 128);
      const std::int64_t all = push(0, 1 << 20);
      EXPECT_LT(rows, all / 10);
      rank.server().finish_pushes();
    }
    world.barrier();
    const std::vector<float> after = rank.fetch(false);
    EXPECT_EQ(after[63], -kRate);
    EXPECT_EQ(after[64], -2.0 * kRate);
    EXPECT_EQ(after[127], -2.0 * kRate);
    EXPECT_EQ(after[128], -kRate);
    rank.server().stop();
  });
}

TEST(ParameterServer, KeepsAnAdamStateThatIsThatOfOneOptimizer) {
  const OptimizerOptions adam{.kind = OptimizerKind::kAdam};
  std::vector<std::vector<float>> ends;
  for (const std::int64_t servers : {std::int64_t{1}, std::int64_t{3}}) {
    run_in_process_ranks(servers, [&](Communicator& world) {
      Rank rank(world, servers, {}, adam);
      rank.server().start();
      for (int i = 0; world.rank() == 0 && i < 5; ++i) {
        rank.fetch();
        rank.push(static_cast<float>(i - 1));
        rank.server().finish_pushes();
      }
      world.barrier();
      const std::vector<float> weights = rank.fetch();
      if (world.rank() == 0) {
        ends.push_back(weights);
      }
      rank.server().stop();
    });
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_NE(ends[0].front(), 0.0F);
}

/// Random delays for some seconds, or for STRATA_STRESS_SECONDS.
TEST(ParameterServer, HoldsItsBoundUnderRandomDelays) {
  constexpr std::int64_t kBound = 3;
  const char* text = std::getenv("STRATA_STRESS_SECONDS");
  const double seconds = text == nullptr ? 5.0 : std::strtod(text, nullptr);
  run_in_process_ranks(4, [&](Communicator& world) {
    Rank rank(world, 4, {.staleness = kBound, .stale = Stale::kDrop});
    rank.server().start();
    const double end = now_seconds() + seconds;
    std::int64_t pushes = 0;
    std::mt19937 random(static_cast<unsigned>(world.rank()));
    while (now_seconds() < end) {
      rank.fetch();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      rank.push(static_cast<float>(pushes++ % kSum));
    }
    rank.server().finish_pushes();
    world.barrier();
    rank.fetch();
    EXPECT_EQ(rank.torn(), 0);
    const ParameterServer::Counts counts = rank.server().counts();
    EXPECT_LE(counts.most_applied, kBound);
    EXPECT_EQ(counts.scaled, 0);
    std::vector<std::int64_t> all(4);
    world.all_gather(comm::payload_of(std::span(&pushes, 1)), comm::payload_of(std::span(all)));
    EXPECT_EQ(counts.applied + counts.dropped, all[0] + all[1] + all[2] + all[3]);
    rank.server().stop();
  });
}

}  // namespace
}  // namespace strata::optim::parameter_server_test
