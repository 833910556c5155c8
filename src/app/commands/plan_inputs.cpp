#include "commands/plan_inputs.hpp"

#include <filesystem>

#include "strata/core/error.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::app {

plan::VirtualGrid stored_grid(const plan::RunConfig& config) {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(train::checkpoint_root(config))) {
    try {
      return train::virtual_grid_of(io::Checkpoint::open(entry.directory));
    } catch (const Error&) {
      continue;  // a run skips it too
    }
  }
  return {};
}

io::DatasetInfo planned_data(const plan::RunConfig& config) {
  if (std::error_code error; !std::filesystem::exists(config.data.train, error)) {
    return plan::assumed_data(config);
  }
  io::DatasetInfo data = io::Dataset::open(config.data.train).info();
  if (data.task == io::Task::kNextToken) {
    data.input_shape = data.target_shape = {plan::context_of(config)};
  }
  return data;
}

plan::RunConfig with_length(plan::RunConfig config, const io::DatasetInfo& data) {
  if (data.samples == 0 && config.train.steps == 0) {
    config.train.steps = 1;
    config.train.epochs = 0.0;
  }
  return config;
}

void set_node_ranks(plan::Plan& plan, std::int64_t node_ranks) {
  if (plan.config.parallel.node_ranks == 0) {
    plan.node_replicas = plan::node_replicas(plan.config, plan.grid, node_ranks);
  }
}

}  // namespace strata::app
