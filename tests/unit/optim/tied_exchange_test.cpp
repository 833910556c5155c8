#include "strata/optim/tied_exchange.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/comm/groups.hpp"
#include "strata/comm/ordered_reduction.hpp"
#include "strata/optim/optimizer.hpp"

#include "in_process.hpp"
#include "layouts.hpp"

namespace strata::optim::test {
namespace {

constexpr std::int64_t kBucket = 2048;
constexpr double kRate = 0.25;

/// The layers of a stage: the last one's table is borrowed from the first.
grid::Range layers_of(std::int64_t stage, std::int64_t stages) {
  const std::map<std::int64_t, std::vector<std::int64_t>> borders{
      {1, {0, 4}}, {2, {0, 2, 4}}, {3, {0, 1, 2, 4}}};
  const std::vector<std::int64_t>& border = borders.at(stages);
  return {border[static_cast<std::size_t>(stage)], border[static_cast<std::size_t>(stage) + 1]};
}

/// The numbers of one placed parameter: another seed gives others.
std::vector<float> numbers_of(const nn::PlacedParameter& placed, std::uint64_t seed) {
  nn::PlacedParameter normal = placed;
  normal.spec.initializer = nn::Initializer::kNormal;
  std::vector<float> values(static_cast<std::size_t>(placed.shape.count()));
  nn::initialise(normal, seed, 0, view_of(values));
  return values;
}

constexpr std::uint64_t kWeights = 1;
constexpr std::uint64_t kGradients = 2;
constexpr std::uint64_t kBorrowedGradients = 3;

std::uint64_t gradients_of(const nn::PlacedParameter& placed) {
  return placed.spec.ownership == nn::Ownership::kBorrowed ? kBorrowedGradients : kGradients;
}

/// What gradients are after their reduction: sums in the own slices, and elsewhere what must not
/// matter.
std::vector<float> reduced_gradients(const nn::ParameterLayout& layout, const BucketPlan& plan,
                                     std::int64_t data_rank) {
  std::vector<float> sums(static_cast<std::size_t>(layout.elements), 0.0F);
  for (const nn::PlacedParameter& placed : layout.parameters) {
    const std::vector<float> numbers = numbers_of(placed, gradients_of(placed));
    std::copy(numbers.begin(), numbers.end(), sums.begin() + placed.offset);
  }
  std::vector<float> gradients(sums.size(), std::numeric_limits<float>::quiet_NaN());
  for (const Bucket& bucket : plan.buckets()) {
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(data_rank)];
    for (std::int64_t i = slice.begin; i < slice.end; ++i) {
      const auto at = static_cast<std::size_t>(bucket.elements.begin + i);
      gradients[at] = sums[at];
    }
  }
  return gradients;
}

/// One rank's stage: what it holds before a step, and the step.
struct Rank {
  nn::ParameterLayout layout;
  BucketPlan plan;
  std::vector<float> weights;
  std::vector<float> gradients;

  Rank(const grid::Grid& grid, const grid::Coordinates& coordinates, const nn::Shards& shards)
      : layout(nn::layout_of(tied_model(), layers_of(coordinates.pipeline, grid.pipeline), shards)),
        plan(layout, grid.data, kBucket),
        weights(static_cast<std::size_t>(layout.weight_elements), 0.0F),
        gradients(reduced_gradients(layout, plan, coordinates.data)) {
    for (const nn::PlacedParameter& placed : layout.parameters) {
      if (placed.offset < layout.weight_elements) {
        const std::vector<float> numbers = numbers_of(placed, kWeights);
        std::copy(numbers.begin(), numbers.end(), weights.begin() + placed.offset);
      }
    }
  }

  void step(const comm::Groups& groups) {
    ops::Context context(1);
    const TiedExchange::Stages stages{.owner = 0, .borrower = groups.grid.pipeline - 1};
    TiedExchange exchange(context, *groups.pipeline, layout, plan, groups.coordinates.data, stages,
                          DType::kFloat32);
    Optimizer optimizer(context, {}, layout, plan, groups.coordinates.data, view_of(weights));
    exchange.combine(view_of(gradients));
    for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
      optimizer.update(b, view_of(gradients), kRate, 1.0, 1);
    }
    exchange.return_weights(view_of(weights));
    std::vector<comm::Request> gathers;
    for (const Bucket& bucket : plan.buckets()) {
      if (bucket.elements.end <= layout.weight_elements) {
        gathers.push_back(comm::begin_all_gather_slices(
            *groups.data,
            view_of(weights).flat_slice(bucket.elements.begin, bucket.elements.count()),
            bucket.slices));
      }
    }
    for (comm::Request& request : gathers) {
      request.wait();
    }
  }

  [[nodiscard]] std::vector<float> weights_of(const nn::PlacedParameter& placed) const {
    return {weights.begin() + placed.offset,
            weights.begin() + placed.offset + placed.shape.count()};
  }
};

/// What a step makes of a placed slice's weights, element by element.
std::vector<float> expected_weights(const nn::PlacedParameter& placed) {
  std::vector<float> weights = numbers_of(placed, kWeights);
  std::vector<float> gradients = numbers_of(placed, kGradients);
  const std::vector<float> borrowed = numbers_of(placed, kBorrowedGradients);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (placed.spec.name == "table") {
      gradients[i] += borrowed[i];
    }
    weights[i] = static_cast<float>(static_cast<double>(weights[i]) -
                                    kRate * static_cast<double>(gradients[i]));
  }
  return weights;
}

/// The number of slices that a grid holds, each of which must be what the formula gives, bit for
/// bit, on every data rank.
std::int64_t stepped_slices(const grid::Grid& grid, const nn::Shards& shards) {
  std::mutex mutex;
  std::int64_t slices = 0;
  comm::run_in_process_ranks(grid.ranks(), [&](comm::Communicator& world) {
    comm::ProgressEngine engine;
    const comm::Groups groups = comm::make_groups(world, engine, grid);
    Rank rank(grid, groups.coordinates, shards);
    rank.step(groups);
    const std::lock_guard lock(mutex);
    for (const nn::PlacedParameter& placed : rank.layout.parameters) {
      if (placed.offset < rank.layout.weight_elements) {
        EXPECT_TRUE(rank.weights_of(placed) == expected_weights(placed))
            << placed.spec.name << " on rank " << world.rank() << " of " << grid.text();
        ++slices;
      }
    }
  });
  return slices;
}

TEST(TiedExchange, GivesTheSameBitsOnEveryNumberOfStagesAndDataRanks) {
  for (const std::int64_t data : {1, 2, 3}) {
    // Four parameters beside the table, which two stages hold twice.
    EXPECT_EQ(stepped_slices({.data = data, .pipeline = 1}, {}), 5 * data);
    EXPECT_EQ(stepped_slices({.data = data, .pipeline = 2}, {}), 6 * data);
    EXPECT_EQ(stepped_slices({.data = data, .pipeline = 3}, {}), 6 * data);
    // The table and one more have two slices.
    const nn::Shards half{.count = 4, .own = {2, 4}};
    EXPECT_EQ(stepped_slices({.data = data, .pipeline = 1}, half), 7 * data);
    EXPECT_EQ(stepped_slices({.data = data, .pipeline = 2}, half), 9 * data);
  }
}

TEST(TiedExchange, AddsBorrowedGradientsToTheOwnersSlicesOnly) {
  for (const std::int64_t stages : {1, 2}) {
    const grid::Grid grid{.data = 2, .pipeline = stages};
    comm::run_in_process_ranks(grid.ranks(), [&](comm::Communicator& world) {
      comm::ProgressEngine engine;
      const comm::Groups groups = comm::make_groups(world, engine, grid);
      Rank rank(grid, groups.coordinates, {});
      const std::vector<float> before = rank.gradients;
      ops::Context context(1);
      TiedExchange exchange(context, *groups.pipeline, rank.layout, rank.plan,
                            groups.coordinates.data, {.owner = 0, .borrower = stages - 1},
                            DType::kFloat32);
      exchange.combine(view_of(rank.gradients));
      const nn::PlacedParameter borrowed = nn::layout_of(tied_model(), {3, 4}).parameters.back();
      const std::vector<float> added = numbers_of(borrowed, kBorrowedGradients);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < rank.layout.elements; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::int64_t in_shared = i - rank.layout.shared.begin;
        const bool is_shared = i >= rank.layout.shared.begin && i < rank.layout.shared.end;
        float expected = before[at];
        if (is_shared && in_shared < std::ssize(added)) {
          expected += added[static_cast<std::size_t>(in_shared)];
        }
        const bool both_nan = expected != expected && rank.gradients[at] != rank.gradients[at];
        wrong += both_nan || rank.gradients[at] == expected ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << "rank " << world.rank() << " of " << grid.text();
    });
  }
}

TEST(TiedExchange, PlansMemoryForArrivingGradientsOnTheOwnerOfTwoStages) {
  const nn::ParameterLayout layout = nn::layout_of(tied_model(), {0, 2});
  const BucketPlan plan(layout, 1, kBucket);
  const auto bytes = [&](std::int64_t rank, const TiedExchange::Stages& stages, DType dtype) {
    return TiedExchange::memory(plan, rank, stages, dtype).bytes;
  };
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 1}, DType::kFloat32), 4 * kBucket * 4);
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 1}, DType::kBfloat16), 4 * kBucket * 4);
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 1}, DType::kFloat64), 4 * kBucket * 8);
  EXPECT_EQ(bytes(1, {.owner = 0, .borrower = 1}, DType::kFloat32), 0);
  EXPECT_EQ(bytes(0, {.owner = 0, .borrower = 0}, DType::kFloat32), 0);
}

TEST(TiedExchange, RefusesStagesThatDoNotShareTheParameter) {
  comm::run_in_process_ranks(1, [](comm::Communicator& world) {
    const nn::ParameterLayout layout = nn::layout_of(tied_model(), {0, 2});
    const BucketPlan plan(layout, 1, kBucket);
    ops::Context context(1);
    const auto make = [&](const TiedExchange::Stages& stages) {
      TiedExchange(context, world, layout, plan, 0, stages, DType::kFloat32);
    };
    EXPECT_NO_THROW(make({.owner = 0, .borrower = 1}));
    EXPECT_THROW(make({.owner = 0, .borrower = 0}), std::logic_error);
    EXPECT_THROW(make({.owner = 1, .borrower = 0}), std::logic_error);
  });
}

}  // namespace
}  // namespace strata::optim::test
