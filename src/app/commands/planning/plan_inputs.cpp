#include "commands/planning/plan_inputs.hpp"

#include <filesystem>

#include "strata/core/error.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::app {

plan::VirtualGrid stored_grid(const config::RunConfig& config) {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(train::checkpoint_root(config))) {
    try {
      return train::virtual_grid_of(io::Checkpoint::open(entry.directory));
    } catch (const Error&) {
      continue;  // a run skips it too
    }
  }
  return {};
}

io::DatasetInfo planned_data(const config::RunConfig& config) {
  if (std::error_code error; !std::filesystem::exists(config.data.train, error)) {
    try {
      return plan::assumed_data(config);
    } catch (const Error& problem) {
      if (config.data.train.empty()) {
        throw;
      }
      fail(problem.code(),
           "data.train = {} does not exist; make it with \"strata data import\", or, to plan a "
           "language model without data, set model.vocabulary, or a preset",
           config.data.train);
    }
  }
  io::DatasetInfo data = io::Dataset::open(config.data.train).info();
  if (data.task == io::Task::kNextToken) {
    data.input_shape = data.target_shape = {plan::context_of(config)};
  }
  return data;
}

bool has_unknown_length(const config::RunConfig& config, const io::DatasetInfo& data) {
  return data.samples == 0 && config.train.steps == 0;
}

config::RunConfig with_length(config::RunConfig config, const io::DatasetInfo& data) {
  if (has_unknown_length(config, data)) {
    config.train.steps = 1;
    config.train.epochs = 0.0;
  }
  return config;
}

}  // namespace strata::app
