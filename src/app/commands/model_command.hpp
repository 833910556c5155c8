#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "strata/core/error.hpp"

#include "config/command_line.hpp"

namespace strata::app {

/// strata checkpoint import: weights of another program as a run's directory.
ExitCode import_model_command(Arguments arguments);

/// strata checkpoint export. `checkpoint_of` finds the checkpoint that an argument names.
ExitCode export_model_command(
    Arguments arguments,
    const std::function<std::filesystem::path(const std::string&)>& checkpoint_of);

[[nodiscard]] std::string model_import_help();
[[nodiscard]] std::string model_export_help();

}  // namespace strata::app
