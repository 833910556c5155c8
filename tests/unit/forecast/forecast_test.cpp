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
#include "step_trace.hpp"

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
  config.optimizer.options.kind = optim::OptimizerKind::kAdamw;
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

struct Sums {
  double messages = 0.0;
  double bytes = 0.0;
};

void add(const std::vector<comm::TraceEvent>& events, grid::Axis axis, double times, Sums& sums) {
  for (const comm::TraceEvent& event : events) {
    if (event.kind == comm::TraceEvent::Kind::kStart && event.messages.axis == axis) {
      sums.messages += times * static_cast<double>(event.messages.messages +
                                                   event.messages.messages_between_nodes);
      sums.bytes += times * (event.messages.bytes + event.messages.bytes_between_nodes);
    }
  }
}

Sums planned(const plan::RankPlan& rank, const std::vector<std::string>& names) {
  Sums sums;
  for (const plan::Traffic& traffic : rank.traffic) {
    if (std::ranges::find(names, traffic.name) != names.end()) {
      sums.messages += traffic.messages;
      sums.bytes += traffic.bytes;
    }
  }
  return sums;
}

// The traffic that the plan prints is counted by formulas; the trace runs what a rank runs.
TEST(StepTrace, HasTheMessagesOfThePlan) {
  struct Case {
    const char* name;
    grid::Grid grid;
    std::int64_t lanes = 0;
    std::int64_t node_ranks = 0;
    std::int64_t row_pieces = 1;
    DType dtype = DType::kFloat32;
    device::DeviceKind device = device::DeviceKind::kCpu;
  };
  const std::vector<Case> cases{
      {.name = "data", .grid = {4, 1, 1}},
      {.name = "more lanes than replicas", .grid = {2, 1, 1}, .lanes = 8},
      {.name = "tensor", .grid = {1, 1, 4}},
      {.name = "tensor, two pieces", .grid = {1, 1, 2}, .row_pieces = 2},
      {.name = "all axes, tied over stages", .grid = {2, 2, 2}, .lanes = 4},
      {.name = "nodes of two replicas", .grid = {4, 1, 1}, .node_ranks = 2},
      {.name = "bfloat16", .grid = {2, 2, 2}, .dtype = DType::kBfloat16},
      {.name = "streams", .grid = {4, 2, 2}, .node_ranks = 4, .device = device::DeviceKind::kCuda}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    config::RunConfig config = gpt(c.grid);
    config.numerics.lanes = c.lanes;
    config.numerics.row_pieces = c.row_pieces;
    config.numerics.dtype = c.dtype;
    config.parallel.node_ranks = c.node_ranks;
    const plan::Plan plan = plan::prepare(config, c.grid.ranks(), tokens(), {}, c.device);
    const std::int64_t node_ranks = c.node_ranks > 0 ? c.node_ranks : c.grid.ranks();
    // The plan takes slices as even and as full, so that only all ranks together have its bytes.
    Sums data;
    Sums expected;
    for (std::int64_t r = 0; r < plan.grid.ranks(); ++r) {
      const plan::RankPlan rank = plan::rank_plan(plan, r);
      const StepTrace step = trace_step(plan, rank, node_ranks);
      Sums tied;
      for (const auto& events : {step.own_lanes, step.finish, step.update}) {
        add(events, grid::Axis::kData, 1.0, data);
      }
      for (const auto& after : {step.reduction, step.gather}) {
        for (const StepTrace::AfterLayer& of : after) {
          add(of.events, grid::Axis::kData, 1.0, data);
        }
      }
      const Sums even = planned(
          rank, {"gradients and weights, between replicas", "gradients and weights, inside a node",
                 "gradients and weights, between nodes"});
      expected.messages += even.messages;
      expected.bytes += even.bytes;

      for (const auto& events : {step.tied, step.update}) {
        add(events, grid::Axis::kPipeline, 1.0, tied);
      }
      const Sums table = planned(rank, {"gradients or weights of a tied table"});
      EXPECT_DOUBLE_EQ(tied.messages, table.messages);
      EXPECT_DOUBLE_EQ(tied.bytes, table.bytes);

      Sums shards;
      for (const nn::StageSpec& chunk : rank.chunks) {
        for (std::int64_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
          const nn::LayerTrace trace =
              nn::trace_layer(*plan.model, layer, chunk,
                              {.tensor = tensor_site(plan, rank.coordinates, node_ranks),
                               .data = data_site(plan, rank.coordinates, node_ranks)},
                              ops::Accumulate::kAdd);
          for (const auto& events : {trace.forward, trace.backward_input, trace.backward_weight}) {
            add(events, grid::Axis::kTensor, static_cast<double>(plan.microbatches), shards);
          }
        }
      }
      const Sums tensor = planned(rank, {"tensor-parallel reductions"});
      EXPECT_DOUBLE_EQ(shards.messages, tensor.messages);
      EXPECT_DOUBLE_EQ(shards.bytes, tensor.bytes);
    }
    EXPECT_DOUBLE_EQ(data.bytes, expected.bytes);
    EXPECT_LE(data.messages, expected.messages);
    EXPECT_GE(data.messages, 0.4 * expected.messages);
  }
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
