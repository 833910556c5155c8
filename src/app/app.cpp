#include "strata/app/app.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/mpi_library.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/log.hpp"
#include "strata/core/memory.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/ops/instruction_set.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "environment/crash_signals.hpp"
#include "environment/rank_launcher.hpp"
#include "environment/versions.hpp"
#include "environment/watchdog.hpp"

namespace strata::app {
namespace {

void report(const std::string& message) {
  print_error(fmt::format("strata: {}\n", printable_lines(message)));
}

/// Runs a command in one process.
int run_alone(const std::function<ExitCode()>& command) {
  try {
    return static_cast<int>(command());
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0 && dynamic_cast<const Error*>(&error) == nullptr) {
      return static_cast<int>(ExitCode::kDone);  // run() reports it
    }
    const Failure failure = failure_of(error);
    report(failure.message);
    return static_cast<int>(failure.code);
  }
}

// A signal handler can only access global state.
std::atomic<int> code_at_alarm{static_cast<int>(ExitCode::kPeer)};

extern "C" void on_alarm(int /*signal*/) {
  _exit(code_at_alarm.load());
}

/// Ends the process with this code after some seconds, until `alarm(0)`.
void end_soon(ExitCode code) {
  constexpr unsigned kMostSeconds = 10;
  code_at_alarm = static_cast<int>(code);
  std::signal(SIGALRM, on_alarm);
  alarm(kMostSeconds);
}

/// Runs a command on all ranks. An AgreedError, thrown on all ranks, ends the job in order. Any
/// other error aborts a job of several ranks, because the others may be waiting for this one.
int run_on_ranks(int argc, char** argv, const config::Command& command, config::Arguments given) {
  const int code = run_alone([&] {
    // MPI takes more, and ends a process to which it is refused; a rank without MPI needs it too.
    constexpr std::size_t kLeastBytes = std::size_t{32} << 20;
    if (memory_is_short(kLeastBytes)) {
      throw OutOfMemory(fmt::format("{}{} could not be allocated", bytes_text(kLeastBytes),
                                    comm::launch_in_environment().ranks == 1 ? "" : " for MPI"));
    }
    // Never destroyed: signal handlers read it to the end, and so do the watchdog's threads where
    // MPI_Abort exits.
    static comm::Activity& activity = *new comm::Activity;
    std::optional<config::CommandLine> line;
    try {
      line.emplace(command, given);
    } catch (const Error&) {
      // All ranks report it together, once MPI has started.
    }
    Watchdog watchdog(watchdog_setup(line ? &*line : nullptr, activity), activity);
    std::optional<comm::MpiSession> session;
    try {
      session.emplace(&argc, &argv, &activity);
    } catch (const std::exception& error) {
      const Failure failure = failure_of(error);
      report(failure.message);
      // The watchdog waits for its threads, and a file system may not respond.
      end_soon(failure.code);
      return failure.code;
    }
    comm::MpiSession& mpi = *session;
    activity.enter(comm::Phase::kSetup);
    const std::int64_t rank = mpi.world().rank();
    install_crash_signals(rank, &activity);
    const auto failed = [&](const std::exception& error) {
      const Failure failure = failure_of(error);
      if (mpi.world().size() == 1) {
        report(failure.message);
        return failure.code;
      }
      // The report writes files, and a file system may not respond.
      end_soon(failure.code);
      if (dynamic_cast<const TimeoutError*>(&error) != nullptr) {
        watchdog.report_timeout(error.what());
        comm::MpiSession::abort(static_cast<int>(failure.code));
      }
      const std::string message = failure.message + watchdog.missing_ranks();
      report(fmt::format("rank {}: {}", rank, message));
      watchdog.write_report(message);
      comm::MpiSession::abort(static_cast<int>(failure.code));
    };
    enum class Reported { kNo, kYes } reported = Reported::kNo;
    const auto report_agreed = [&](const comm::AgreedError& error) {
      if (rank == 0 && std::exchange(reported, Reported::kYes) == Reported::kNo) {
        report(error.what());
      }
    };
    ExitCode ended = ExitCode::kDone;
    try {
      comm::agree_plan(mpi.world(), [&]() -> std::vector<comm::PlanItem> {
        if (!line) {
          line.emplace(command, given);
        }
        refuse_ranks_of_ranks(*line);
        refuse_outputs_that_are_inputs(*line);
        if (command.rank_options == config::RankOptions::kAny) {
          return {};
        }
        return {{"options", hash_of(line->options_text())}};
      });
      ended = command.on_ranks(*line, mpi, [&](const std::exception& error) {
        if (const auto* const agreed = dynamic_cast<const comm::AgreedError*>(&error)) {
          report_agreed(*agreed);
        } else if (mpi.world().size() > 1) {
          failed(error);
        }
      });
    } catch (const comm::AgreedError& error) {
      report_agreed(error);
      ended = error.code();
    } catch (const std::exception& error) {
      ended = failed(error);
    }
    std::fflush(stdout);  // run() reports a failure
    set_code_of_end(ended);
    // PMIx waits so long for the launcher to answer. Then Open MPI's takes the end of the process
    // for a crash. Source: https://github.com/openpmix/openpmix/pull/3650
    constexpr double kPmixSeconds = 2.0;
    const double seconds = mpi.finalize();
    set_code_of_end(std::nullopt);
    activity.enter(comm::Phase::kEnd);
    if (seconds > kPmixSeconds && ended == ExitCode::kDone) {
      report(
          fmt::format("rank {}: MPI_Finalize took {:.1f} s, as the launcher is slow to answer. The "
                      "command is complete, also if the launcher reports that a process exited "
                      "improperly",
                      rank, seconds));
    }
    // The watchdog waits for its threads and deletes files, and a file system may not respond.
    end_soon(ended);
    return ended;
  });
  alarm(0);
  return code;
}

int run_command(int argc, char** argv, const train::TrainerHooks& hooks) {
  // Under a file size limit, writes fail with a message instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto has = [&](std::string_view option) {
    return std::ranges::find(arguments, option) != arguments.end();
  };
  if (const bool all = has("--help=all"); all || has("--help") || has("-h")) {
    fmt::print("{}",
               help_of(arguments, all ? config::HelpDetail::kAll : config::HelpDetail::kCommon));
    return 0;
  }
  if (!arguments.empty() && arguments.front() == "--version") {
    fmt::print("{}instruction set: {}\n", versions_text(versions()),
               name_of(ops::native_instruction_set()));
    return 0;
  }
  config::Command command = command_of(arguments);
  if (command.name == "train") {
    command.on_ranks = [&](const auto& line, comm::MpiSession& mpi, const auto& on_failure) {
      return train_model(line, mpi, on_failure, hooks);
    };
  }
  const config::Arguments given = arguments_of(command, arguments);
  const std::string chosen = "--" + command.on_ranks_with;
  const bool on_ranks =
      command.on_ranks && (!command.alone || std::ranges::any_of(given, [&](const auto& argument) {
        return argument.substr(0, argument.find('=')) == chosen;
      }));
  if (command.before_mpi) {
    command.before_mpi();
  }
  if (on_ranks && comm::launch_in_environment().by_launcher) {
    return run_on_ranks(argc, argv, command, given);
  }
  const config::CommandLine line(command, given);
  refuse_outputs_that_are_inputs(line);
  if (on_ranks) {
    return starts_ranks(line) ? launch_ranks(line) : run_on_ranks(argc, argv, command, given);
  }
  return static_cast<int>(command.alone(line));
}

}  // namespace

int run(int argc, char** argv, const train::TrainerHooks& hooks) {
  // Else the first files would get the numbers of closed streams, and messages be written to them.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) {
      static_cast<void>(::open("/dev/null", O_RDONLY));  // writing fails as before
    }
  }
  comm::take_signals_from_ucx();
  install_crash_signals(0, nullptr);
  const int code = run_alone([&] { return static_cast<ExitCode>(run_command(argc, argv, hooks)); });
  allow_exit();
  // A full disk shows when the last lines are written, or earlier.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) &&
      code == static_cast<int>(ExitCode::kDone)) {
    report(
        fmt::format("standard output cannot be written: {}; free some space, or send the output "
                    "elsewhere",
                    std::strerror(errno)));
    return static_cast<int>(ExitCode::kData);
  }
  return code;
}

}  // namespace strata::app
