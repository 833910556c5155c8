#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/app/config_file.hpp"
#include "strata/comm/mpi.hpp"
#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"
#include "strata/plan/plan.hpp"

#include "config/command_line.hpp"

namespace strata::app {

/// What the commands that use a model begin with: the config, the data sets and the checkpoint to
/// go on from.
struct RunInputs {
  plan::RunConfig config;
  /// Who decided its settings.
  std::map<std::string, Origin> origins;
  /// Of data.train, or what a plan without data assumes.
  io::DatasetInfo train_info;
  std::optional<io::Dataset> train_data;
  std::optional<io::Dataset> test_data;  ///< or what else a command evaluates on
  std::optional<io::Checkpoint> checkpoint;
  int threads = 1;
  /// What every rank computes on.
  device::DeviceKind device = device::DeviceKind::kCpu;
};

/// The config file's name and the settings, without what is the command's own.
struct TrainArguments {
  std::string config;
  std::vector<std::string> settings;
  bool dry_run = false;     ///< of train: --dry-run
  bool each_class = false;  ///< of evaluate: --classes
  std::string confusion;    ///< of evaluate: --confusion=FILE
};

/// Throws: Error(kUsage) where there is no config file.
[[nodiscard]] TrainArguments take_arguments(Arguments arguments, std::string_view command);

/// Whether a plan can do without the data set that it is for.
enum class DataNeeded { kNo, kYes };

/// Reads the config and opens the data sets, the same on every rank.
[[nodiscard]] RunInputs open_run_inputs(comm::MpiSession& mpi, const std::string& path,
                                        Arguments settings, DataNeeded needed);

/// Whether a command reads a data set that the model did not need to learn from.
enum class Evaluates { kNo, kYes };

/// Reads the config of a trained model, in a file or a run's directory, and opens the newest good
/// checkpoint of run.dir, with a grid for all ranks. The training data are opened only where the
/// checkpoint does not describe them. Throws: AgreedError(kCheckpoint) where there is no
/// checkpoint.
[[nodiscard]] RunInputs open_trained(comm::MpiSession& mpi, const std::string& path,
                                     Arguments settings, Evaluates evaluates, Log& log);

/// Refuses or takes up what run.dir holds.
void open_run_directory(comm::MpiSession& mpi, RunInputs& inputs, Log& log);

/// The plan for so many ranks; for the config's grid where that is 0.
[[nodiscard]] plan::Plan make_plan(comm::MpiSession& mpi, const RunInputs& inputs,
                                   std::int64_t ranks);

/// Only rank 0 writes to the terminal and the log.
[[nodiscard]] Log::Output log_role(comm::MpiSession& mpi);

}  // namespace strata::app
