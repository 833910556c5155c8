#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/comm/mpi.hpp"
#include "strata/config/command.hpp"
#include "strata/config/config_file.hpp"
#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

/// Inputs of the commands that use a model: the config, the data sets and the checkpoint.
struct RunInputs {
  /// As given; plan::Plan holds the resolved one.
  config::RunConfig config;
  /// Origins of the settings.
  std::map<std::string, config::Origin> origins;
  /// Description of data.train, or of the data that a plan without a data set assumes.
  io::DatasetInfo train_info;
  std::optional<io::Dataset> train_data;
  std::optional<io::Dataset> test_data;  ///< or other data to evaluate on
  std::optional<io::Checkpoint> checkpoint;
  /// Of a replay from the initial weights: that of the run.
  std::optional<plan::VirtualGrid> replayed;
  bool consent = false;  ///< consents_to_other_numbers()
  /// Of checkpoint.init, for a new run.
  std::optional<io::Checkpoint> initial;
  int threads = 1;
  /// The device of all ranks.
  device::DeviceKind device = device::DeviceKind::kCpu;
};

/// Whether the command line gives numerics.lanes or numerics.shards.
[[nodiscard]] bool consents_to_other_numbers(config::Arguments settings);
/// The virtual grid of the checkpoint that the run continues, or of the run that is replayed; zeros
/// where there is none.
[[nodiscard]] plan::VirtualGrid stored_grid(const RunInputs& inputs);

/// The checkpoint of a run that a command uses.
enum class WhichCheckpoint { kNewest, kBest };

constexpr auto enum_names(WhichCheckpoint) {
  return names_in_order("newest", "best");
}

/// The value of --checkpoint.
[[nodiscard]] WhichCheckpoint which_checkpoint(const config::CommandLine& line);

/// Opens the checkpoint whose directory the command line names, or the newest or best one of the
/// run there. Prints the checkpoint's warning.
[[nodiscard]] io::Checkpoint open_checkpoint(const config::CommandLine& line);

/// Reads a config file, or that of a run's directory. Throws: Error(kUsage).
[[nodiscard]] config::GivenConfig read_run_config(const std::string& path,
                                                  config::Arguments settings);

/// Whether a command needs data.train.
enum class DataNeeded { kNo, kYes };

/// Reads the config of train and opens the data sets. Communication: collective over the world.
[[nodiscard]] RunInputs open_run_inputs(comm::MpiSession& mpi, const std::string& path,
                                        config::Arguments settings, DataNeeded data, Log& log);

/// Whether a command needs a data set to evaluate on.
enum class Evaluates { kNo, kYes };

/// Reads the config of a trained model from a file or a run's directory, opens the newest good
/// checkpoint of run.dir, or the best one, and chooses a grid for all ranks. The training data are
/// opened only where the checkpoint does not describe them. Communication: collective over the
/// world. Throws: AgreedError(kCheckpoint) where there is no checkpoint.
[[nodiscard]] RunInputs open_trained(comm::MpiSession& mpi, const std::string& path,
                                     config::Arguments settings, Evaluates evaluates,
                                     WhichCheckpoint which, Log& log);

/// Opens the checkpoint in run.dir, or refuses the directory, as run.resume asks.
/// Communication: collective over the world.
void open_run_directory(comm::MpiSession& mpi, RunInputs& inputs, Log& log);

/// Opens the checkpoint of checkpoint.init for a run that continues none.
/// Communication: collective over the world.
void open_initial(comm::MpiSession& mpi, RunInputs& inputs, Log& log);

/// The number of consecutive ranks on each host, where all have as many; else 1.
[[nodiscard]] std::int64_t ranks_of_nodes(std::span<const std::string> hosts);

/// The plan for `ranks` ranks; for the config's grid where that is 0.
/// Communication: collective over the world.
[[nodiscard]] plan::Plan make_plan(comm::MpiSession& mpi, const RunInputs& inputs,
                                   std::int64_t ranks);

/// Numbers the classes and orders the columns of the data sets as the checkpoint does, or else the
/// training data, by their names; checks that the test data fit. Returns: a line for the log for
/// each data set that differs. Communication: collective over the world. Throws: AgreedError(kData)
/// naming a class or column that only one of them has.
[[nodiscard]] std::vector<std::string> match_data(comm::MpiSession& mpi, RunInputs& inputs,
                                                  plan::Plan& plan);

/// Only rank 0 prints and writes the log.
[[nodiscard]] Log::Output log_role(comm::MpiSession& mpi);

}  // namespace strata::app
