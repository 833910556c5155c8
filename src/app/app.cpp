#include "strata/app/app.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/app/config_file.hpp"
#include "strata/comm/agree.hpp"
#include "strata/core/text.hpp"
#include "strata/ops/instruction_set.hpp"

#include "commands/commands.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

constexpr const char* kUsage =
    R"(strata trains neural networks on grids of MPI ranks.

  strata train CONFIG.ini [--section.key=value ...] [--dry-run]   train; --run.resume=auto continues
  strata evaluate CONFIG.ini [--section.key=value ...]            loss and accuracy of the newest checkpoint; --classes: of
                                                                  each class, --confusion=FILE.csv: who is taken for whom
  strata generate CONFIG.ini [--prompt=TEXT ...]                  text from a language model (--help lists the options)
  strata data import --format=FORMAT ... --output=DIR             make a data set (--help lists the options)
  strata data inspect DIR/train.h5 [--verify]                     show a data set; read and check every byte;
                                                                  --contact-sheet=FILE.png: a picture of 64 of its images,
                                                                  or of --samples=N
  strata checkpoint inspect DIR                                   list what a checkpoint holds
  strata checkpoint verify DIR                                    read and check every byte
  strata doctor                                                   check the node and, under mpirun or srun, the launch
  strata train --help                                             every setting with its default
  strata --version

Exit codes: 0 done; 2 wrong use or config; 3 bad or missing data; 4 bad checkpoint; 5 a peer or device failed;
6 diverged; 75 stopped on request with a checkpoint written, submit again to go on.
)";

void report(const std::string& message) {
  fmt::print(stderr, "strata: {}\n", message);
}

/// Runs a command of one process.
int run_alone(const std::function<ExitCode()>& command) {
  try {
    return static_cast<int>(command());
  } catch (const Error& error) {
    report(error.what());
    return static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    report(fmt::format("{}: {}", error.path1().string(), error.code().message()));
    return static_cast<int>(ExitCode::kData);
  } catch (const std::exception& error) {
    report(fmt::format("unexpected failure: {}", error.what()));
    return static_cast<int>(ExitCode::kPeer);
  }
}

/// Runs a command on all ranks. An error that all hold ends the job in order; one that only this
/// rank has ends it at once where there are others, for they may be waiting.
int run_on_ranks(int argc, char** argv, const std::function<ExitCode(comm::MpiSession&)>& command) {
  return run_alone([&] {
    comm::MpiSession mpi(&argc, &argv);
    const std::int64_t rank = mpi.world().rank();
    const auto end_job = [&](ExitCode code, const std::string& message) {
      if (mpi.world().size() > 1) {
        report(fmt::format("rank {}: {}", rank, message));
        comm::MpiSession::abort(static_cast<int>(code));
      }
      report(message);
      return code;
    };
    ExitCode code = ExitCode::kDone;
    try {
      code = command(mpi);
    } catch (const comm::AgreedError& error) {
      if (rank == 0) {
        report(error.what());
      }
      code = error.code();
    } catch (const Error& error) {
      code = end_job(error.code(), error.what());
    } catch (const std::exception& error) {
      code = end_job(ExitCode::kPeer, fmt::format("unexpected failure: {}", error.what()));
    }
    mpi.finalize();
    return code;
  });
}

}  // namespace

int run(int argc, char** argv) {
  // Under a file size limit, writes are to fail with a message and not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command = arguments.empty() ? "" : arguments.front();
  const Arguments rest = Arguments(arguments).subspan(arguments.empty() ? 0 : 1);
  const bool wants_help = std::find(rest.begin(), rest.end(), "--help") != rest.end();

  if (command == "train" || command == "evaluate" || command == "generate") {
    if (wants_help && command != "generate") {
      fmt::print("{}{}", kUsage, config_help());
      return 0;
    }
    const auto on_ranks = command == "train"      ? train_command
                          : command == "evaluate" ? evaluate_command
                                                  : generate_command;
    return run_on_ranks(argc, argv, [&](comm::MpiSession& mpi) { return on_ranks(mpi, rest); });
  }
  const bool own_help = command == "data" && !rest.empty() && rest.front() == "import";
  if (command == "--help" || command == "-h" || (wants_help && !own_help)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (command == "data") {
    return run_alone([&] { return data_command(rest); });
  }
  if (command == "checkpoint") {
    return run_alone([&] { return checkpoint_command(rest); });
  }
  if (command == "doctor") {
    return run_on_ranks(argc, argv,
                        [&](comm::MpiSession& mpi) { return doctor_command(mpi, rest); });
  }
  if (command == "--version") {
    fmt::print("{}instruction set: {}\n", versions_text(versions()),
               name_of(ops::native_instruction_set()));
    return 0;
  }
  if (command == "help" && !rest.empty() && rest.front() == "reference") {
    fmt::print("{}", config_reference());
    return 0;
  }
  if (command == "help") {
    fmt::print("{}", kUsage);
    return 0;
  }
  return run_alone([&]() -> ExitCode {
    const std::vector<std::string> known{"train", "evaluate",   "generate",
                                         "data",  "checkpoint", "doctor"};
    fail(ExitCode::kUsage, "{}\n\n{}",
         command.empty() ? "a command is needed"
                         : fmt::format("there is no command \"{}\"; the nearest is \"{}\"", command,
                                       nearest(command, known)),
         kUsage);
  });
}

}  // namespace strata::app
