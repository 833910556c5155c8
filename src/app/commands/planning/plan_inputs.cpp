#include "commands/planning/plan_inputs.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/log.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/train/checkpointing.hpp"

#include "environment/run_inputs.hpp"

namespace strata::app {

bool has_data(const config::RunConfig& config) {
  std::error_code error;
  return !config.data.train.empty() &&
         std::ranges::all_of(io::mixture_sets(config.data.train), [&](const io::MixtureSet& set) {
           return std::filesystem::exists(set.master, error);
         });
}

namespace {

/// The config's data, or, before these exist, those of the checkpoint, with which they are not
/// compared then.
io::DatasetInfo compared_data(const config::RunConfig& config, const io::Checkpoint& checkpoint) {
  std::optional<io::DatasetInfo> data;
  if (!has_data(config)) {
    data = train::data_of(checkpoint);
  }
  return data ? *std::move(data) : planned_data(config);
}

/// Why `strata train` does not continue the checkpoint's run with the config; empty where it does.
std::string difference_of(const config::RunConfig& config, const io::Checkpoint& checkpoint) {
  try {
    train::require_same_run(plan::without_grid(config, compared_data(config, checkpoint)),
                            checkpoint);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

plan::VirtualGrid continued_grid(config::GivenConfig& given, config::Arguments settings) {
  for (const io::CheckpointEntry& entry :
       io::list_checkpoints(train::checkpoint_root(given.config))) {
    try {
      const io::Checkpoint checkpoint = io::Checkpoint::open(entry.directory);
      plan::VirtualGrid grid = train::virtual_grid_of(checkpoint);
      grid.consent = consents_to_other_numbers(settings);
      config::GivenConfig kept = given;
      train::keep_settings(checkpoint, kept.config, kept.origins);
      if (const std::string difference = difference_of(kept.config, checkpoint);
          !difference.empty()) {
        print_error(fmt::format("warning: {}; this is the plan of a new run\n",
                                printable_lines(difference)));
        return {};
      }
      given = std::move(kept);
      if (grid.lanes != 0) {
        print_error(fmt::format("{} {} {}; with another run.dir this is the plan of a new run\n",
                                printable(entry.directory.string()),
                                plan::kept_grid(given.config, grid) == grid
                                    ? "fixes"
                                    : "continues by consent, no longer with",
                                plan::virtual_grid_text(grid)));
      }
      return grid;
    } catch (const Error&) {
      continue;  // a run skips it too
    }
  }
  return {};
}

io::DatasetInfo planned_data(const config::RunConfig& config) {
  if (!has_data(config)) {
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
  return plan::open_train_data(config).info();
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
