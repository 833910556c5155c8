#pragma once

#include <vector>

#include "strata/config/command.hpp"

namespace strata::app {

/// The options of each command that runs on ranks: --ranks and --hostfile.
[[nodiscard]] std::vector<config::CommandOption> launch_options();

/// Whether the command line asks for ranks that this process has to start: several, or one on
/// another host, and not for a dry run. Throws: Error(kUsage).
[[nodiscard]] bool starts_ranks(const config::CommandLine& line);

/// Refuses the options where a launcher started this process: Error(kUsage).
void refuse_ranks_of_ranks(const config::CommandLine& line);

/// Runs the command on the ranks that it asks for, inside a Slurm job with srun, else with mpirun.
/// Stop requests that this process takes reach the ranks; a signal that ends it ends them.
/// Returns: their exit code. Throws: Error(kUsage).
[[nodiscard]] int launch_ranks(const config::CommandLine& line);

}  // namespace strata::app
