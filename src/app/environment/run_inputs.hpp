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

/// The inputs of commands that use a model: the config, the data sets and the checkpoint.
struct RunInputs {
  /// As given; plan::Plan holds the resolved one.
  plan::RunConfig config;
  /// The origin of each setting.
  std::map<std::string, Origin> origins;
  /// Of data.train, or plan::assumed_data().
  io::DatasetInfo train_info;
  std::optional<io::Dataset> train_data;
  std::optional<io::Dataset> test_data;  ///< or another data set that a command evaluates
  std::optional<io::Checkpoint> checkpoint;
  int threads = 1;
  /// The same on all ranks.
  device::DeviceKind device = device::DeviceKind::kCpu;
};

/// The config file's name, the settings, and the options of the command.
struct TrainArguments {
  std::string config;
  std::vector<std::string> settings;
  bool dry_run = false;     ///< of train: --dry-run
  bool each_class = false;  ///< of evaluate: --classes
  std::string confusion;    ///< of evaluate: --confusion=FILE
};

/// Throws: Error(kUsage) where there is no config file.
[[nodiscard]] TrainArguments take_arguments(Arguments arguments, std::string_view command);

/// Whether a command needs the training data set.
enum class DataNeeded { kNo, kYes };

/// Reads the config and opens the data sets, the same on every rank.
[[nodiscard]] RunInputs open_run_inputs(comm::MpiSession& mpi, const std::string& path,
                                        Arguments settings, DataNeeded needed);

/// Whether a command reads a test data set.
enum class Evaluates { kNo, kYes };

/// Reads the config of a trained model, in a file or a run's directory, and opens the newest good
/// checkpoint of run.dir, with a grid for all ranks. The training data are opened only where the
/// checkpoint does not describe them. Throws: AgreedError(kCheckpoint) where there is no
/// checkpoint.
[[nodiscard]] RunInputs open_trained(comm::MpiSession& mpi, const std::string& path,
                                     Arguments settings, Evaluates evaluates, Log& log);

/// Rejects an existing run in run.dir, or opens its newest checkpoint, as run.resume says.
void open_run_directory(comm::MpiSession& mpi, RunInputs& inputs, Log& log);

/// The plan for `ranks` ranks; 0: for the config's grid.
[[nodiscard]] plan::Plan make_plan(comm::MpiSession& mpi, const RunInputs& inputs,
                                   std::int64_t ranks);

/// Only rank 0 prints and writes the log.
[[nodiscard]] Log::Output log_role(comm::MpiSession& mpi);

}  // namespace strata::app
