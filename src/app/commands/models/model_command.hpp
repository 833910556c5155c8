#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "strata/comm/mpi.hpp"
#include "strata/config/command_line.hpp"
#include "strata/core/error.hpp"

namespace strata::app {

/// strata checkpoint import: weights of another program as a run's directory.
ExitCode import_model_command(config::Arguments arguments);

/// Finds the checkpoint that an argument names, of a run the newest or the best.
using CheckpointOf =
    std::function<std::filesystem::path(const std::string& path, const std::string& which)>;

/// strata checkpoint export; `mpi` is null without --check-logits.
ExitCode export_model_command(config::Arguments arguments, const CheckpointOf& checkpoint_of,
                              comm::MpiSession* mpi);

[[nodiscard]] std::string model_import_help();
[[nodiscard]] std::string model_export_help();

}  // namespace strata::app
