#include "strata/app/app.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/agree.hpp"
#include "strata/config/config_file.hpp"
#include "strata/core/log.hpp"
#include "strata/core/memory.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/train/stop_signal.hpp"

#include "commands/commands.hpp"
#include "commands/models/model_command.hpp"
#include "environment/crash_signals.hpp"
#include "environment/versions.hpp"
#include "environment/watchdog.hpp"
#include "manual.hpp"

namespace strata::app {
namespace {

constexpr const char* kUsage =
    R"(strata trains neural networks on grids of MPI ranks.

  strata train CONFIG.ini [--section.key=value ...] [--dry-run]   train; --run.resume=auto continues
  strata evaluate RUN|CONFIG.ini [--section.key=value ...]        loss and accuracy of the newest checkpoint
  strata generate RUN|CONFIG.ini [--prompt=TEXT ...]              text from a language model
  strata data import --format=FORMAT ... --output=DIR             make a data set
  strata data inspect DIR/train.h5 [--verify]                     show a data set, or check every byte
  strata checkpoint inspect DIR                                   list the contents of a checkpoint
  strata checkpoint verify DIR                                    read and check every byte
  strata checkpoint import PATH --output=DIR                      a run from the weights of another program
  strata checkpoint export RUN --format=FORMAT --output=DIR       weights for other programs
  strata job CONFIG.ini --nodes=N --time=T ...                    write a job script for Slurm, PBS, Flux or mpirun
  strata plan CONFIG.ini --nodes=N --machine=M [--search] ...      the time of a step, the memory, the best grid
  strata sweep CONFIG.ini --set KEY=A,B --dir=DIR                 train with each of several settings, rank the runs
  strata schedule check|simulate|draw|convert SCHEDULE            prove and time a pipeline schedule, PyTorch's too
  strata schedule make [--memory=N ...]                           search for the fastest pipeline schedule
  strata timeline report|draw|times FILE                          the time account and a picture of recorded steps
  strata watch RUN                                                the progress of a run on a terminal
  strata report RUN... --output=FILE.html                         a page that shows and compares runs
  strata metrics export RUN                                       the records of a run as CSV
  strata doctor                                                   check the node and, under mpirun or srun, the launch
  strata help [COMMAND]                                           this text, or that of a command
  strata --version

Each command explains its options: strata COMMAND --help. strata train --help lists every setting.

Exit codes: 0 done; 2 wrong use or config; 3 bad or missing data; 4 bad checkpoint; 5 a peer or device failed,
or memory or threads ran out; 6 diverged; 75 stopped on request: checkpoint written, or none needed yet; submit
again to go on.
)";

constexpr const char* kTrainHelp =
    R"(strata train CONFIG.ini [--section.key=value ...] [--dry-run]

Trains on as many ranks as mpirun or srun started, and writes config.ini, log.txt, metrics.jsonl and checkpoints into
run.dir. A setting on the command line overrides the file's. If one is given twice, the last counts.

  --run.resume=auto    continues from the newest good checkpoint, on any grid
  --dry-run            prints the plan without training; alone, for the grid that the settings name
)";

constexpr const char* kEvaluateHelp =
    R"(strata evaluate RUN|CONFIG.ini [--classes] [--confusion=FILE.csv] [--section.key=value ...]

Prints loss and accuracy of the newest good checkpoint on data.test, or on data.train if data.test is empty. RUN is a
run's directory. Runs on any number of ranks that the checkpoint's lanes, layers and shards allow, with the same numbers.

  --data.test=FILE       the data set to evaluate on
  --checkpoint=best      the best checkpoint of checkpoint.best instead of the newest
  --classes              accuracy of each class, and the class it is most often confused with
  --confusion=FILE.csv   writes the confusion matrix
)";

constexpr const char* kDataInspectHelp =
    R"(strata data inspect FILE.h5 ... [--verify] [--contact-sheet=FILE.png [--samples=N]]

Shows what data sets hold.

  --verify                  reads every byte and compares it with its checksum
  --contact-sheet=FILE.png  a picture of images spread over a data set
  --samples=N               how many (default 64)
)";

constexpr const char* kCheckpointInspectHelp =
    R"(strata checkpoint inspect DIR

Lists the metadata and the tensors of a checkpoint, or of a run's newest one; with --checkpoint=best of its best one.
)";

constexpr const char* kCheckpointVerifyHelp =
    R"(strata checkpoint verify DIR

Reads every byte of a checkpoint, or of a run's newest one, and compares it with its checksum; with --checkpoint=best of
its best one.
)";

constexpr const char* kDoctorHelp =
    R"(strata doctor [--run.dir=DIR]

Checks the node and, under mpirun or srun, the launch: cores, GPUs, clocks, limits, network, libraries, executables, and
the file system of DIR (default: the working directory). Ends with exit code 5 if it finds a problem.

  --run.dir=DIR    where a run will write
)";

constexpr const char* kHelpHelp =
    R"(strata help [COMMAND]             what the program does, or a command
strata help reference             the page docs/configuration.md
strata help man [PAGE]            a manual page, as in strata-train, in roff; without PAGE the names of all
strata help completion bash|zsh   a completion script for a shell
)";

std::vector<Help> all_help() {
  return {{"", kUsage},
          {"train", kTrainHelp + config::config_help()},
          {"evaluate", kEvaluateHelp},
          {"generate", generate_help()},
          {"data import", import_help()},
          {"data inspect", kDataInspectHelp},
          {"checkpoint inspect", kCheckpointInspectHelp},
          {"checkpoint verify", kCheckpointVerifyHelp},
          {"checkpoint import", model_import_help()},
          {"checkpoint export", model_export_help()},
          {"job", job_help()},
          {"plan", plan_help()},
          {"sweep", sweep_help()},
          {"schedule", schedule_help()},
          {"timeline", timeline_help()},
          {"watch", watch_help()},
          {"report", report_help()},
          {"metrics", metrics_help()},
          {"doctor", kDoctorHelp},
          {"help", kHelpHelp}};
}

/// The text for "--help": that of the named command, those of all commands that share a first word,
/// or the program's.
std::string help_of(config::Arguments arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  const std::string both = arguments.size() < 2 ? first : first + " " + arguments[1];
  std::string text;
  for (const Help& help : all_help()) {
    if (help.command == both) {
      return help.text;
    }
    if (help.command == first || help.command.starts_with(first + " ")) {
      text += (text.empty() ? "" : "\n") + help.text;
    }
  }
  return text.empty() ? kUsage : text;
}

/// "help man [PAGE]" and "help completion SHELL", for the installation.
std::string generated_help(config::Arguments arguments) {
  const std::vector<Help> all = all_help();
  const std::string given = arguments.size() < 2 ? "" : arguments[1];
  if (arguments.front() == "completion") {
    const auto shell = enum_from_name<Shell>(given);
    if (!shell) {
      fail(ExitCode::kUsage, "there is no completion for \"{}\"; give one of {}", given,
           joined_names<Shell>());
    }
    return completion(*shell, all);
  }
  std::vector<std::string> pages;
  for (const Help& help : all) {
    pages.push_back(page_name(help));
    if (pages.back() == given) {
      return man_page(help, all);
    }
  }
  if (!given.empty()) {
    fail(ExitCode::kUsage, "there is no manual page \"{}\"; the nearest is \"{}\"", given,
         nearest(given, pages));
  }
  return fmt::format("{}\n", fmt::join(pages, "\n"));
}

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
int run_on_ranks(int argc, char** argv,
                 const std::function<ExitCode(comm::MpiSession&, const FailureHandler&)>& command) {
  const int code = run_alone([&] {
    // MPI takes more, and ends a process to which it is refused; a rank without MPI needs it too.
    constexpr std::size_t kLeastBytes = std::size_t{32} << 20;
    if (memory_is_short(kLeastBytes)) {
      throw OutOfMemory(fmt::format("{}{} could not be allocated", bytes_text(kLeastBytes),
                                    comm::launch_in_environment().ranks == 1 ? "" : " for MPI"));
    }
    static comm::Activity activity;  // signal handlers read it to the end
    const std::vector<std::string> arguments(argv + 2, argv + argc);
    Watchdog watchdog(watchdog_setup(arguments, activity), activity);
    comm::MpiSession mpi(&argc, &argv, &activity);
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
      ended = command(mpi, [&](const std::exception& error) {
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
    activity.enter(comm::Phase::kEnd);
    mpi.finalize();
    // The watchdog waits for its threads and deletes files, and a file system may not respond.
    std::fflush(stdout);  // run() reports a failure
    end_soon(ended);
    return ended;
  });
  alarm(0);
  return code;
}

}  // namespace

namespace {

int run_command(int argc, char** argv) {
  // Under a file size limit, writes fail with a message instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command = arguments.empty() ? "" : arguments.front();
  const config::Arguments rest = config::Arguments(arguments).subspan(arguments.empty() ? 0 : 1);
  if (command == "help" && !rest.empty() && rest.front() == "reference") {
    fmt::print("{}", config::config_reference());
    return 0;
  }
  if (command == "help" && !rest.empty() &&
      (rest.front() == "man" || rest.front() == "completion")) {
    return run_alone([&] {
      fmt::print("{}", generated_help(rest));
      return ExitCode::kDone;
    });
  }
  if (std::any_of(arguments.begin(), arguments.end(),
                  [](const auto& word) { return word == "--help" || word == "-h"; })) {
    fmt::print("{}", help_of(arguments));
    return 0;
  }
  if (command == "help") {
    fmt::print("{}", help_of(rest));
    return 0;
  }
  if (command == "--version") {
    fmt::print("{}instruction set: {}\n", versions_text(versions()),
               name_of(ops::native_instruction_set()));
    return 0;
  }
  if (command == "train" || (command == "data" && !rest.empty() && rest.front() == "import")) {
    // These commands write files and continue after a closed pipe; other commands end.
    std::signal(SIGPIPE, SIG_IGN);
  }
  if (command == "train" || command == "sweep") {
    // Before MPI starts, so that a stop request during set-up is not the end of the process.
    train::install_stop_signals();
  }
  if (command == "checkpoint" && checkpoint_needs_mpi(rest)) {
    return run_on_ranks(argc, argv, [&](comm::MpiSession& mpi, const FailureHandler&) {
      return checkpoint_command(rest, &mpi);
    });
  }
  if (command == "train" || command == "evaluate" || command == "generate") {
    return run_on_ranks(argc, argv, [&](comm::MpiSession& mpi, const FailureHandler& on_failure) {
      return command == "train"      ? train_command(mpi, rest, on_failure)
             : command == "evaluate" ? evaluate_command(mpi, rest)
                                     : generate_command(mpi, rest);
    });
  }
  if (command == "data") {
    return run_alone([&] { return data_command(rest); });
  }
  if (command == "checkpoint") {
    return run_alone([&] { return checkpoint_command(rest, nullptr); });
  }
  if (command == "job") {
    return run_alone([&] { return job_command(rest); });
  }
  if (command == "plan") {
    if (!plan_needs_mpi(rest)) {
      return run_alone([&] { return plan_command(rest, nullptr); });
    }
    return run_on_ranks(argc, argv, [&](comm::MpiSession& mpi, const FailureHandler&) {
      return plan_command(rest, &mpi);
    });
  }
  if (command == "sweep") {
    return run_alone([&] { return sweep_command(rest); });
  }
  if (command == "schedule") {
    return run_alone([&] { return schedule_command(rest); });
  }
  if (command == "timeline") {
    return run_alone([&] { return timeline_command(rest); });
  }
  if (command == "watch") {
    return run_alone([&] { return watch_command(rest); });
  }
  if (command == "report") {
    return run_alone([&] { return report_command(rest); });
  }
  if (command == "metrics") {
    return run_alone([&] { return metrics_command(rest); });
  }
  if (command == "doctor") {
    return run_on_ranks(argc, argv, [&](comm::MpiSession& mpi, const FailureHandler&) {
      return doctor_command(mpi, rest);
    });
  }
  return run_alone([&]() -> ExitCode {
    const std::vector<std::string> known{"train", "evaluate", "generate", "data",     "checkpoint",
                                         "job",   "plan",     "sweep",    "schedule", "timeline",
                                         "watch", "report",   "metrics",  "doctor"};
    fail(ExitCode::kUsage, "{}\n\n{}",
         command.empty() ? "a command is needed"
                         : fmt::format("there is no command \"{}\"; the nearest is \"{}\"", command,
                                       nearest(command, known)),
         kUsage);
  });
}

}  // namespace

int run(int argc, char** argv) {
  // Else the first files would get the numbers of closed streams, and messages be written to them.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) {
      static_cast<void>(::open("/dev/null", O_RDONLY));  // writing fails as before
    }
  }
  install_crash_signals(0, nullptr);
  const int code = run_alone([&] { return static_cast<ExitCode>(run_command(argc, argv)); });
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
