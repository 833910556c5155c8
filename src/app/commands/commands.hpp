#pragma once

#include <string>
#include <vector>

#include "strata/comm/mpi.hpp"
#include "strata/config/command.hpp"
#include "strata/train/setup.hpp"

namespace strata::app {

using Commands = std::vector<config::Command>;

// Rows of the table, with the functions that run the commands.
Commands train_commands();
Commands replay_commands();
Commands evaluate_commands();
Commands predict_commands();
Commands generate_commands();
Commands data_commands();
Commands checkpoint_commands();
Commands model_commands();
Commands job_commands();
Commands plan_commands();
Commands sweep_commands();
Commands schedule_commands();
Commands timeline_commands();
Commands watch_commands();
Commands report_commands();
Commands metrics_commands();
Commands doctor_commands();
Commands help_commands();

/// The table of commands, in the order of the program's help.
inline constexpr Commands (*kCommands[])() = {
    train_commands,   replay_commands,     evaluate_commands, predict_commands, generate_commands,
    data_commands,    checkpoint_commands, model_commands,    job_commands,     plan_commands,
    sweep_commands,   schedule_commands,   timeline_commands, watch_commands,   report_commands,
    metrics_commands, doctor_commands,     help_commands};
[[nodiscard]] const Commands& all_commands();

/// The command train.
ExitCode train_model(const config::CommandLine& line, comm::MpiSession& mpi,
                     const config::FailureHandler& on_failure, const train::TrainerHooks& hooks);

/// The settings of a command whose first position is a config or a run; read_config() refuses
/// further positions among them.
[[nodiscard]] std::vector<std::string> settings_of(const config::CommandLine& line);

/// The row of the command that the arguments begin with. Throws: Error(kUsage).
[[nodiscard]] const config::Command& command_of(config::Arguments arguments);
/// The arguments behind the command's name.
[[nodiscard]] config::Arguments arguments_of(const config::Command& command,
                                             config::Arguments arguments);

/// The help of the command that the arguments name, of all that share its first word, or of the
/// program. Throws: Error(kUsage) for another command.
[[nodiscard]] std::string help_of(config::Arguments arguments,
                                  config::HelpDetail detail = config::HelpDetail::kCommon);

}  // namespace strata::app
