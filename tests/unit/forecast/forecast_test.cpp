#include "strata/forecast/forecast.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/forecast/grid_search.hpp"
#include "strata/nn/layer_trace.hpp"

#include "error_of.hpp"

namespace strata::forecast::forecast_test {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr std::int64_t kContext = 8;

io::DatasetInfo tokens() {
  return {.path = "train.h5",
          .task = io::Task::kNextToken,
          .samples = 100,
          .input_shape = {kContext},
          .input_dtype = DType::kInt64,
          .target_shape = {kContext},
          .classes = 24};
}

config::RunConfig gpt(const grid::Grid& grid = {}) {
  config::RunConfig config;
  config.model.transformer = {
      .preset = nn::Preset::kGpt, .blocks = 3, .width = 16, .heads = 4, .context = kContext};
  config.batch.global = 16;
  config.batch.micro = 2;
  config.train.steps = 3;
  config.parallel.data = grid.data;
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
  config.optimizer.kind = optim::OptimizerKind::kAdamw;
  return config;
}

/// A machine of round figures: 1 TFLOP/s, 100 GB/s, links of 10 GB/s.
Machine machine() {
  Machine machine;
  machine.name = "test";
  machine.node_devices = 4;
  machine.memory_bytes = 4e9;
  machine.peak_flops = {{DType::kFloat32, 1e12}, {DType::kBfloat16, 2e12}};
  machine.memory_bytes_per_second = 1e11;
  machine.product_efficiency = machine.attention_efficiency = machine.convolution_efficiency = 0.5;
  machine.memory_efficiency = 0.5;
  machine.launch_seconds = 1e-6;
  machine.node = machine.network = {.latency_seconds = 1e-6, .bytes_per_second = 1e10};
  machine.file_write_bytes_per_second = 1e9;
  return machine;
}

double sum_of(const std::vector<StepPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const StepPart& part) { return sum + part.seconds; });
}

TEST(Forecaster, PartsAddUpToTheStep) {
  for (const grid::Grid& grid : {grid::Grid{1, 1, 1}, grid::Grid{4, 1, 1}, grid::Grid{1, 3, 1},
                                 grid::Grid{1, 1, 4}, grid::Grid{2, 3, 2}}) {
    SCOPED_TRACE(grid.text());
    const Machine on = machine();
    Forecaster forecaster(on);
    const plan::Plan plan = plan::prepare(gpt(grid), grid.ranks(), tokens(), {});
    const Forecast forecast = forecaster.forecast(plan, grid.ranks());
    EXPECT_NEAR(sum_of(forecast.parts), forecast.step_seconds, 1e-9 * forecast.step_seconds);
    EXPECT_GT(forecast.step_seconds, 0.0);
    EXPECT_TRUE(forecast.fits);
    EXPECT_GT(*forecast.mfu, 0.0);
    EXPECT_LT(*forecast.mfu, 0.5);
    ASSERT_EQ(std::ssize(forecast.stages), grid.pipeline);
  }
}

TEST(Forecaster, FollowsTheMachine) {
  const plan::Plan plan = plan::prepare(gpt(), 1, tokens(), {});
  const auto seconds = [&](const Machine& on) {
    Forecaster forecaster(on);
    return forecaster.forecast(plan, 1).step_seconds;
  };
  Machine twice = machine();
  twice.peak_flops[DType::kFloat32] *= 2.0;
  twice.memory_bytes_per_second *= 2.0;
  twice.launch_seconds /= 2.0;
  EXPECT_NEAR(seconds(twice), seconds(machine()) / 2.0, 1e-9);
}

TEST(Forecaster, RefusesWhatItCannotPredict) {
  Machine without = machine();
  without.peak_flops.erase(DType::kFloat32);
  Forecaster forecaster(without);
  const plan::Plan plan = plan::prepare(gpt(), 1, tokens(), {});
  EXPECT_THAT(error_of([&] { static_cast<void>(forecaster.forecast(plan, 1)); }, ExitCode::kUsage),
              HasSubstr("peak.float32_tflops"));
  config::RunConfig config = gpt({2, 1, 1});
  config.parallel.sync = config::Sync::kAsync;
  const plan::Plan workers = plan::prepare(config, 2, tokens(), {});
  EXPECT_THAT(
      error_of([&] { static_cast<void>(forecaster.forecast(workers, 2)); }, ExitCode::kUsage),
      HasSubstr("parallel.sync is async"));
}

TEST(SearchGrids, RanksWhatFits) {
  const Machine on = machine();
  Forecaster forecaster(on);
  config::RunConfig config = gpt();
  config.parallel.data = 0;
  config.batch.micro = 0;
  const SearchResult found =
      search_grids(forecaster, config, tokens(), {.ranks = 8, .node_ranks = 4});
  ASSERT_GT(found.choices.size(), 10U);
  EXPECT_TRUE(std::ranges::is_sorted(found.choices, {}, &GridChoice::step_seconds));
  const std::vector<GridChoice> line = pareto_of(found.choices);
  EXPECT_EQ(line.front().step_seconds, found.choices.front().step_seconds);
  EXPECT_TRUE(std::ranges::is_sorted(line, std::greater(), &GridChoice::memory_bytes));
  // A full forecast of a choice agrees with the search's, which takes fewer microbatches.
  for (std::size_t i = 0; i < 5; ++i) {
    plan::Plan plan = plan::prepare(found.choices[i].config, 8, tokens(), {});
    plan.node_replicas = plan::node_replicas(plan.config, plan.grid, 4);
    EXPECT_NEAR(forecaster.forecast(plan, 4).step_seconds, found.choices[i].step_seconds,
                0.01 * found.choices[i].step_seconds);
  }
}

TEST(SearchGrids, KeepsWhatFixesTheNumbers) {
  const Machine on = machine();
  Forecaster forecaster(on);
  config::RunConfig config = gpt();
  config.parallel.data = 0;
  config.numerics.lanes = 4;
  config.numerics.shards = 2;
  const SearchResult found = search_grids(
      forecaster, config, tokens(), {.ranks = 4, .node_ranks = 4, .fixed = {"parallel.pipeline"}});
  for (const GridChoice& choice : found.choices) {
    EXPECT_EQ(choice.grid.pipeline, 1);
    EXPECT_EQ(choice.lanes, 4);
    EXPECT_EQ(choice.shards, 2);
    EXPECT_EQ(choice.microbatch, 2);
    EXPECT_EQ(choice.bits, "");
  }
}

TEST(SearchGrids, SaysWhatWouldHaveToGive) {
  Machine small = machine();
  small.memory_bytes = 1e6;
  Forecaster forecaster(small);
  EXPECT_THAT(error_of(
                  [&] {
                    static_cast<void>(
                        search_grids(forecaster, gpt(), tokens(), {.ranks = 2, .node_ranks = 2}));
                  },
                  ExitCode::kUsage),
              testing::AllOf(HasSubstr("no grid of 2 ranks fits"), HasSubstr("times as many nodes"),
                             HasSubstr("numerics.dtype = bfloat16")));
}

}  // namespace
}  // namespace strata::forecast::forecast_test
