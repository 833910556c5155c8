#pragma once

#include <functional>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/train/checkpointing.hpp"
#include "strata/train/trainer.hpp"

/// Training in one process, for tests.
namespace strata::train::test {

/// Trains on one rank as the train command does on a process.
inline Outcome train_rank(
    comm::Communicator& world, comm::ProgressEngine& engine, const config::RunConfig& config,
    const std::function<std::string(const config::RunConfig&)>& text_of,
    const std::function<StopRequest()>& stop_request = [] { return StopRequest::kNone; },
    const TrainerHooks& hooks = {}) {
  Log log(Log::Output::kSilent);
  io::Dataset train_data = plan::open_train_data(config);
  std::optional<io::Dataset> test_data;
  if (!config.data.test.empty()) {
    test_data = plan::open_test_data(config, config.data.test);
  }
  std::optional<io::Checkpoint> checkpoint;
  std::optional<io::Checkpoint> initial;
  if (config.run.resume == config::Resume::kMust) {
    checkpoint = newest_good_checkpoint(world, checkpoint_root(config), log);
  } else if (!config.checkpoint.init.empty()) {
    initial = initial_checkpoint(world, config.checkpoint.init, log);
  }
  plan::Plan plan = plan::prepare(config, world.size(), train_data.info(),
                                  checkpoint ? virtual_grid_of(*checkpoint) : plan::VirtualGrid());
  plan::set_node_ranks(plan, world.size());
  comm::Groups groups =
      comm::make_groups(world, engine, plan.grid, comm::pipeline_routes(plan::chunk_stages(plan)));
  ops::Context context(static_cast<int>(config.run.threads));
  return train({.plan = plan,
                .groups = groups,
                .context = context,
                .train_data = train_data,
                .test_data = test_data ? &*test_data : nullptr,
                .checkpoint = checkpoint ? &*checkpoint : nullptr,
                .initial = initial ? &*initial : nullptr,
                .config_text = text_of(plan.config),
                .stop_request = stop_request,
                .hooks = hooks,
                .log = log});
}

/// The seconds of a part of a step.
inline double seconds_of(const nlohmann::json& line, const std::string& part) {
  return line.at(part + "_seconds").get<double>();
}

/// The parts of a training step make up the step.
inline void expect_parts_of_step(const nlohmann::json& line) {
  double sum = 0.0;
  for (const std::string part : {"compute", "communication", "bubble", "data", "other"}) {
    // The difference of two clocks may come out a little below 0.
    EXPECT_GE(seconds_of(line, part), -1e-9) << part;
    sum += seconds_of(line, part);
  }
  EXPECT_NEAR(sum, seconds_of(line, "step"), 1e-9);
  EXPECT_NEAR(seconds_of(line, "data_group") + seconds_of(line, "pipeline_group") +
                  seconds_of(line, "tensor_group") + seconds_of(line, "islands_group"),
              seconds_of(line, "communication"), 1e-9);
}

}  // namespace strata::train::test
