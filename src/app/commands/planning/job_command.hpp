#pragma once

#include <string>
#include <vector>

#include "strata/config/command_line.hpp"

namespace strata::app {

/// The options of strata job that take a value.
[[nodiscard]] std::vector<std::string> job_option_names();

/// A command as a shell reads it, without --submit.
[[nodiscard]] std::string command_text(const std::string& name, config::Arguments arguments);

/// Writes the script that the arguments of strata job ask for, and submits it if they say so. With
/// `elements` it is a Slurm job array: each element is the further settings of one run.
/// `command` is what the script's head says that it was made by.
/// Throws: Error(kUsage).
void write_job(config::Arguments arguments, std::vector<std::vector<std::string>> elements,
               const std::string& command);

}  // namespace strata::app
