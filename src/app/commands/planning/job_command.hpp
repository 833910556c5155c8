#pragma once

#include <string>
#include <vector>

#include "strata/config/command.hpp"

namespace strata::app {

/// The options of strata job that a job array has too, without --output and --submit.
[[nodiscard]] std::vector<config::CommandOption> job_options();

/// A command as a shell reads it, without --submit.
[[nodiscard]] std::string command_text(const std::string& name, const config::CommandLine& line);

/// Writes the script that the command line of strata job asks for, and submits it if it says so.
/// With `elements` it is a Slurm job array: each element is the further settings of one run.
/// `command` is what the script's head says that it was made by.
/// Throws: Error(kUsage).
void write_job(config::CommandLine line, std::vector<std::vector<std::string>> elements,
               const std::string& command);

}  // namespace strata::app
