#pragma once

#include <exception>
#include <functional>
#include <string>

#include "strata/comm/mpi.hpp"
#include "strata/config/command_line.hpp"
#include "strata/core/error.hpp"

namespace strata::app {

/// Reports the failure of one rank and aborts the job. Returns where there is one rank only.
using FailureHandler = std::function<void(const std::exception&)>;

/// Commands that run on a grid of ranks. Training calls `on_failure` before it releases memory and
/// threads, which may take long.
ExitCode train_command(comm::MpiSession& mpi, config::Arguments arguments,
                       const FailureHandler& on_failure);
ExitCode evaluate_command(comm::MpiSession& mpi, config::Arguments arguments);
/// Runs on one rank.
ExitCode generate_command(comm::MpiSession& mpi, config::Arguments arguments);

/// Checks the node and the launch; runs on any number of ranks, 1 included.
ExitCode doctor_command(comm::MpiSession& mpi, config::Arguments arguments);

/// Commands that run in one process.
ExitCode data_command(config::Arguments arguments);
/// `mpi`: where checkpoint_needs_mpi(), else null; runs on one rank.
ExitCode checkpoint_command(config::Arguments arguments, comm::MpiSession* mpi);
/// Whether a checkpoint command computes with the model.
[[nodiscard]] bool checkpoint_needs_mpi(config::Arguments arguments);
/// Writes a job script, and submits it if asked.
ExitCode job_command(config::Arguments arguments);
/// Predicts a run; `mpi`: where plan_needs_mpi(), else null.
ExitCode plan_command(config::Arguments arguments, comm::MpiSession* mpi);
/// Whether it measures this machine.
[[nodiscard]] bool plan_needs_mpi(config::Arguments arguments);
/// Trains with many settings, or submits a job array that does.
ExitCode sweep_command(config::Arguments arguments);
/// Proves, simulates, draws and writes pipeline schedules.
ExitCode schedule_command(config::Arguments arguments);
/// Reports and draws the steps that a run recorded.
ExitCode timeline_command(config::Arguments arguments);
/// Shows a run on a terminal.
ExitCode watch_command(config::Arguments arguments);
/// Writes an HTML page about runs.
ExitCode report_command(config::Arguments arguments);
/// Prints the records of a run.
ExitCode metrics_command(config::Arguments arguments);

/// Help texts of the commands with options of their own.
[[nodiscard]] std::string import_help();
[[nodiscard]] std::string generate_help();
[[nodiscard]] std::string job_help();
[[nodiscard]] std::string plan_help();
[[nodiscard]] std::string sweep_help();
[[nodiscard]] std::string schedule_help();
[[nodiscard]] std::string timeline_help();
[[nodiscard]] std::string watch_help();
[[nodiscard]] std::string report_help();
[[nodiscard]] std::string metrics_help();

}  // namespace strata::app
