#pragma once

#include <string>
#include <vector>

#include "strata/config/command.hpp"

namespace strata::app {

/// The options of strata job that a job array has too, without --output and --submit.
[[nodiscard]] std::vector<config::CommandOption> job_options();

/// Writes the script that the command line of strata job or sweep asks for, and submits it if it
/// says so. `settings`: further ones. With `elements` it is a Slurm job array: each element is the
/// further settings of one run. Throws: Error(kUsage).
void write_job(config::CommandLine line, const std::vector<std::string>& settings = {},
               std::vector<std::vector<std::string>> elements = {});

}  // namespace strata::app
