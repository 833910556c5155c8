#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "strata/pipeline/simulator.hpp"
#include "strata/plan/memory_fit.hpp"

#include "commands/planning/plan_view.hpp"

namespace strata::app::test {

/// A planned run with a forecast whose figures are made up.
struct PlannedRun {
  plan::Plan plan;
  forecast::Machine machine;
  forecast::Forecast forecast;
  forecast::RunConditions conditions;

  [[nodiscard]] PlanView view() const {
    return {.plan = plan, .machine = machine, .forecast = forecast, .conditions = conditions};
  }
};

/// A GPT with a block for each stage on nodes of 8 ranks.
inline PlannedRun planned_run(const grid::Grid& grid, std::int64_t microbatches = 8) {
  config::RunConfig config;
  config.model.transformer = {.preset = nn::Preset::kGpt,
                              .blocks = std::max<std::int64_t>(2, grid.pipeline),
                              .width = 64,
                              .heads = 8,
                              .context = 32};
  config.parallel.data = grid.data;
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
  config.batch.micro = 1;
  config.batch.global = grid.data * microbatches;
  config.train.steps = 100000;
  const io::DatasetInfo data{.path = "train.h5",
                             .task = io::Task::kNextToken,
                             .samples = 100000,
                             .input_shape = {32},
                             .input_dtype = DType::kInt64,
                             .target_shape = {32},
                             .classes = 256};
  PlannedRun run{.plan = plan::prepare(config, grid.ranks(), data, {})};
  run.machine.name = "made-up <&>";
  run.machine.source = "a test";
  run.machine.node_devices = 8;

  forecast::Forecast& f = run.forecast;
  const std::vector<plan::RankPlan> ranks = plan::largest_rank_plans(run.plan);
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    forecast::StageForecast stage{.rank = ranks[s]};
    const double slow = s == 0 ? 1.25 : 1.0;
    stage.chunks.assign(ranks[s].chunks.size(),
                        {.forward_seconds = slow * 0.010, .backward_input_seconds = slow * 0.020});
    stage.compute_seconds = slow * 0.030 * static_cast<double>(microbatches);
    stage.memory_bytes = static_cast<double>(plan::device_bytes(ranks[s]));
    f.costs.times.push_back(stage.chunks);
    f.free_bytes = std::max(f.free_bytes, 1.5 * stage.memory_bytes);
    f.stages.push_back(std::move(stage));
  }
  f.costs.links = {{.activation_seconds = 0.001, .gradient_seconds = 0.001}};
  f.simulation = pipeline::simulate(run.plan.training, f.costs);
  f.step_seconds = f.simulation.step_seconds + 0.005;
  const auto samples = static_cast<double>(config.batch.global);
  f.samples_per_second = samples / f.step_seconds;
  f.tokens_per_second = 32.0 * f.samples_per_second;
  f.mfu = 0.412;
  const double products = 0.7 * f.simulation.busy_seconds[0];
  f.parts = {{.name = "matrix products", .seconds = products, .setting = ""},
             {.name = "pipeline bubble",
              .seconds = f.step_seconds - products - 0.005,
              .setting = "a smaller batch.micro, a larger batch.global"},
             {.name = "optimizer", .seconds = 0.005, .setting = "more replicas (parallel.data)"}};
  std::ranges::stable_sort(f.parts, std::greater(), &forecast::StepPart::seconds);
  f.bubble_fraction = f.simulation.bubble_fraction;
  f.exposed_seconds = 0.002;
  f.checkpoint_bytes = 3.0 * 1073741824.0;
  f.checkpoint_seconds = 12.0;
  run.conditions = forecast::conditions_of(run.plan, f, run.machine, 8);
  return run;
}

/// Made-up choices, the fastest first.
inline forecast::SearchResult made_choices(std::int64_t count) {
  forecast::SearchResult result{.choices = {}, .tried = count + 3, .too_large = 3, .smallest = {}};
  for (std::int64_t i = 0; i < count; ++i) {
    forecast::GridChoice& choice = result.choices.emplace_back();
    choice.grid = {.data = 1 + i % 4, .pipeline = 1 + i % 3, .tensor = 2};
    choice.lanes = 8;
    choice.microbatch = 1 + i % 4;
    choice.schedule = "1f1b";
    choice.recompute = static_cast<nn::Recompute>(i % 3);
    choice.bucket_mib = 25.0;
    choice.step_seconds = 1.0 + 0.01 * static_cast<double>(i);
    choice.memory_bytes =
        1073741824.0 * (20.0 + 40.0 * static_cast<double>((i * 37 + 70) % 101) / 101.0);
    choice.mfu = 0.4 / choice.step_seconds;
    choice.bits = i % 4 == 0 ? "" : "8 x 1, 4";
  }
  return result;
}

}  // namespace strata::app::test
