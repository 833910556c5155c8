#include "commands/planning/step_measurement.hpp"

#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/nn/layer_trace.hpp"

namespace strata::app::step_measurement_test {
namespace {

io::DatasetInfo tokens() {
  return {.path = "(none)",
          .task = io::Task::kNextToken,
          .samples = 1000,
          .input_shape = {16},
          .input_dtype = DType::kInt64,
          .target_shape = {16},
          .classes = 50};
}

io::DatasetInfo images() {
  return {.path = "(none)", .samples = 1000, .input_shape = {1, 28, 28}, .classes = 10};
}

io::DatasetInfo values() {
  return {.path = "(none)",
          .task = io::Task::kRegression,
          .samples = 1000,
          .input_shape = {5},
          .target_shape = {2}};
}

config::RunConfig config_of(nn::Preset preset, DType dtype) {
  config::RunConfig config;
  config.model.transformer = {.preset = preset};
  if (nn::is_transformer(preset)) {
    config.model.transformer.blocks = 2;
    config.model.transformer.width = 32;
    config.model.transformer.heads = 4;
    config.model.transformer.context = 16;
  }
  config.numerics.dtype = dtype;
  config.batch.global = 16;
  config.batch.micro = 2;
  config.train.steps = 1;
  return config;
}

std::string text_of(std::string_view name, DType dtype,
                    const std::array<std::int64_t, 3>& extents) {
  return fmt::format("{} {} {}", name, name_of(dtype), fmt::join(extents, " "));
}

TEST(StepMeasurement, SeesTheOperationsThatThePlanPredicts) {
  struct Case {
    const char* name;
    config::RunConfig config;
    io::DatasetInfo data;
    std::int64_t ranks = 1;
  };
  std::vector<Case> cases{
      {"gpt", config_of(nn::Preset::kGpt, DType::kFloat32), tokens()},
      {"bfloat16", config_of(nn::Preset::kLlama, DType::kBfloat16), tokens()},
      {"images", config_of(nn::Preset::kLenet, DType::kFloat32), images()},
      {"regression", config_of(nn::Preset::kNone, DType::kBfloat16), values()},
      // Of other ranks' messages nothing arrives.
      {"grid", config_of(nn::Preset::kGpt, DType::kFloat32), tokens(), 8},
  };
  cases[0].config.numerics.shards = 2;
  cases[0].config.numerics.lanes = 2;
  cases[3].config.model.layers = {"dense 4 relu", "dense 2"};
  cases[4].config.parallel.pipeline = 2;
  cases[4].config.parallel.tensor = 2;
  cases[4].config.parallel.data = 2;
  for (const Case& of : cases) {
    SCOPED_TRACE(of.name);
    const plan::Plan plan = plan::prepare(of.config, of.ranks, of.data, {});
    for (const plan::RankPlan& rank : plan::largest_rank_plans(plan)) {
      ops::Context context(1);
      OperationTimer timer(context);
      const double step = do_steps(context, timer, plan, rank, {.least = 2, .most = 2});
      EXPECT_GT(step, 0.0);
      std::set<std::string> measured;
      double sum = 0.0;
      for (const auto& [key, operations] : timer.times()) {
        for (const forecast::MeasuredOperation& operation : operations) {
          EXPECT_GT(operation.seconds, 0.0);
          sum += operation.seconds;
          measured.insert(text_of(key.first, key.second, operation.extents));
        }
      }
      EXPECT_LT(sum, 2.0 * step);
      const nn::StageSpec& chunk = rank.chunks.front();
      for (std::int64_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
        const nn::LayerTrace trace = nn::trace_layer(
            *plan.model, layer, chunk,
            {.tensor = {.axis = grid::Axis::kTensor, .ranks = plan.grid.tensor},
             .data = {.ranks = plan.grid.data}},
            plan.microbatches_per_lane > 1 ? ops::Accumulate::kAdd : ops::Accumulate::kOverwrite);
        for (const auto& events : {trace.forward, trace.backward_input, trace.backward_weight}) {
          for (const comm::TraceEvent& event : events) {
            if (event.kind == comm::TraceEvent::Kind::kOperation &&
                event.work.flops + event.work.bytes > 0.0) {
              const std::string text =
                  text_of(event.work.name, event.work.dtype, event.work.extents);
              EXPECT_TRUE(measured.contains(text)) << text;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata::app::step_measurement_test
