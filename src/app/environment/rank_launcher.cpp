#include "environment/rank_launcher.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/mpi.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/io/command_output.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/stop_signal.hpp"

#include "environment/child_process.hpp"
#include "environment/temporary_directory.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

struct LaunchSize {
  std::int64_t ranks = 1;
  std::string hostfile;  ///< empty: this host, or the scheduler's
};

/// A program that starts ranks.
struct LaunchProgram {
  std::string_view version;                                 ///< how its --version begins
  std::string_view mpi_library;                             ///< the MPI library that it is of
  std::vector<std::string> (*words)(const LaunchSize& of);  ///< before the program
  /// Its own messages that say no more than the exit code and the ranks' messages: how blocks
  /// between two rules begin, and parts of other lines.
  std::array<std::string_view, 3> blocks;
  std::array<std::string_view, 3> lines;
};

/// The variables that ranks on other hosts need too.
std::vector<std::string> forwarded_variables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (name == "LD_LIBRARY_PATH" ||
        std::ranges::any_of(std::array{"STRATA_", "OMP_", "NCCL_", "UCX_"},
                            [&](const char* prefix) { return name.starts_with(prefix); })) {
      names.emplace_back(name);
    }
  }
  return names;
}

// Ranks share a host's cores among themselves (default_threads()). Bound ones would get one core
// each, or the same cores as those of another launch.
std::vector<std::string> open_mpi_words(const LaunchSize& of) {
  std::vector<std::string> words{"mpirun",
                                 "-n",
                                 std::to_string(of.ranks),
                                 "--map-by",
                                 of.hostfile.empty() ? "slot:OVERSUBSCRIBE" : "slot",
                                 "--bind-to",
                                 "none"};
  if (::geteuid() == 0) {
    words.emplace_back("--allow-run-as-root");
  }
  if (of.hostfile.empty()) {
    return words;
  }
  words.insert(words.end(), {"--hostfile", of.hostfile});
  for (const std::string& name : forwarded_variables()) {
    words.insert(words.end(), {"-x", name});
  }
  return words;
}

/// Launchers by their MPI library. Another one needs a row here, and its variables in
/// comm::launch_in_environment().
constexpr std::array kLaunchPrograms{
    LaunchProgram{.version = "mpirun (Open MPI) 4.",
                  .mpi_library = "Open MPI v4.",
                  .words = open_mpi_words,
                  .blocks = {"Primary job  terminated normally, but",
                             "mpirun detected that one or more processes exited with non-zero",
                             "MPI_ABORT was invoked on rank"},
                  .lines = {"mpirun: Forwarding signal ", "sent help message help-mpi-api.txt / ",
                            "Set MCA parameter \"orte_base_help_aggregate\" to 0"}},
    // Its launcher is PRRTE, called prterun in messages.
    LaunchProgram{
        .version = "mpirun (Open MPI) 5.",
        .mpi_library = "Open MPI v5.",
        .words = open_mpi_words,
        .blocks = {"prterun detected that one or more processes exited with non-zero",
                   "prterun has exited due to process rank", "MPI_ABORT was invoked on rank"},
        .lines = {"PRTE: Forwarding signal ", "sent help message help-mpi-api.txt / ",
                  "Set MCA parameter \"base_help_aggregate\" to 0"}}};

/// The launcher of the MPI library that this program uses. That of another one would start
/// processes that do not know of each other.
const LaunchProgram& launcher_for(std::int64_t ranks) {
  const io::CommandOutput version = io::output_of("mpirun --version 2>/dev/null");
  const std::string library = comm::MpiSession::library_text();
  for (const LaunchProgram& launcher : kLaunchPrograms) {
    if (version.succeeded && version.text.starts_with(launcher.version) &&
        library.starts_with(launcher.mpi_library)) {
      return launcher;
    }
  }
  const std::string found =
      version.succeeded
          ? fmt::format("mpirun is \"{}\"", version.text.substr(0, version.text.find('\n')))
          : "there is no mpirun in PATH";
  fail(ExitCode::kUsage,
       "--ranks needs the mpirun of {}, with which strata was built, and {}; install it (Debian: "
       "openmpi-bin), load its module, or start the ranks yourself, as with mpirun -n {} strata",
       library, found, ranks);
}

/// Inside a Slurm job, srun starts ranks on its nodes, bound to the cores that it gives them.
std::vector<std::string> slurm_words(const LaunchSize& of) {
  if (!of.hostfile.empty()) {
    fail(ExitCode::kUsage,
         "--hostfile is for machines without a scheduler, and this is Slurm job {}, which has its "
         "own nodes; leave --hostfile out",
         std::getenv("SLURM_JOB_ID"));
  }
  if (!io::output_of("srun --version 2>/dev/null").succeeded) {
    fail(ExitCode::kUsage,
         "--ranks inside a Slurm job needs srun, and there is none in PATH; put Slurm's programs "
         "there, or start the ranks yourself");
  }
  ::setenv("SLURM_PMIX_FENCE", "ring", 0);  // Slurm 22.05's default fence crashes some starts
  if (const char* const cores = std::getenv("SLURM_CPUS_PER_TASK")) {
    ::setenv("SRUN_CPUS_PER_TASK", cores, 0);  // srun does not take it from sbatch
  }
  std::vector<std::string> words{"srun", "--mpi=pmix", "--kill-on-bad-exit=1",
                                 fmt::format("--ntasks={}", of.ranks)};
  if (std::getenv("SLURM_STEP_ID") != nullptr) {
    words.emplace_back("--overlap");  // a shell of srun --pty holds the cores
  }
  return words;
}

/// Passes on what ranks and launcher write to standard error, but for what the launcher need not
/// say.
class FilteredErrors {
 public:
  explicit FilteredErrors(const LaunchProgram& launcher) : launcher_(launcher) {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      fail(ExitCode::kPeer, "cannot open a pipe; raise the limit on open files (ulimit -n)");
    }
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  FilteredErrors(const FilteredErrors&) = delete;
  FilteredErrors& operator=(const FilteredErrors&) = delete;
  ~FilteredErrors() {
    print(rule_ + line_);
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  [[nodiscard]] int end_to_write() const { return ends_[1]; }

  /// Passes on what has arrived.
  void pass() {
    std::array<char, 4096> piece{};
    for (ssize_t bytes = 0; (bytes = ::read(ends_[0], piece.data(), piece.size())) > 0;) {
      for (const char letter : std::string_view(piece.data(), static_cast<std::size_t>(bytes))) {
        line_ += letter;
        if (letter == '\n') {
          take_line(line_);
          line_.clear();
        }
      }
    }
  }

 private:
  static void print(const std::string& text) {
    static_cast<void>(io::write_fully(STDERR_FILENO, text));
  }

  /// A rule may begin a message of the launcher, or be of a rank's table: the next line tells.
  void take_line(const std::string& line) {
    constexpr std::size_t kRule = 74;
    const auto begins = [&](std::string_view begin) { return line.starts_with(begin); };
    const auto has = [&](std::string_view part) { return line.find(part) != std::string::npos; };
    const bool is_rule = line == std::string(kRule, '-') + "\n";
    if (in_block_) {
      in_block_ = !is_rule;
    } else if (!rule_.empty() && std::ranges::any_of(launcher_.blocks, begins)) {
      rule_.clear();
      in_block_ = true;
    } else if (std::ranges::none_of(launcher_.lines, has)) {
      print(std::exchange(rule_, is_rule ? line : "") + (is_rule ? "" : line));
    }
  }

  const LaunchProgram& launcher_;
  std::array<int, 2> ends_{};
  std::string line_;
  std::string rule_;  ///< the line before, where it is one
  bool in_block_ = false;
};

void require_hosts(const std::string& hostfile) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
  const std::vector<std::string> lines =
      split_words(io::read_input(hostfile, kMostBytes, ExitCode::kUsage), "\n");
  if (std::ranges::all_of(lines, [](const std::string& line) {
        const std::string_view text = trimmed(line);
        return text.empty() || text.starts_with('#');
      })) {
    fail(ExitCode::kUsage,
         "--hostfile={} names no host; give it a line for each, as in \"node1 slots=4\"", hostfile);
  }
}

/// This program, its command and its arguments without the options of the launch.
std::vector<std::string> rank_words(const config::CommandLine& line) {
  std::vector<std::string> words{own_program().string()};
  std::ranges::copy(split_words(line.command(), " "), std::back_inserter(words));
  bool is_value = false;
  for (const std::string& argument : line.arguments()) {
    const std::string name = argument.substr(0, argument.find('='));
    const bool is_option = name == "--ranks" || name == "--hostfile";
    if (!is_option && !is_value) {
      words.push_back(argument);
    }
    is_value = is_option && name == argument;
  }
  return words;
}

}  // namespace

std::vector<config::CommandOption> launch_options() {
  return {{"ranks", "N",
           "starts N ranks, inside a Slurm job with srun, else with mpirun (default: as launched, "
           "else 1)"},
          {"hostfile", "FILE",
           "hosts of the ranks, a line \"HOST slots=RANKS\" for each (default: this host)"}};
}

bool starts_ranks(const config::CommandLine& line) {
  if (!line.has("ranks") && line.has("hostfile")) {
    fail(ExitCode::kUsage, "--hostfile needs --ranks=N, the number of ranks on its hosts");
  }
  const std::int64_t ranks = line.count("ranks", 1, 1, kMostRanks);
  return (ranks > 1 || line.has("hostfile")) && !line.has("dry-run");
}

void refuse_ranks_of_ranks(const config::CommandLine& line) {
  const comm::Launch launch = comm::launch_in_environment();
  if (launch.by_launcher && (line.has("ranks") || line.has("hostfile"))) {
    fail(ExitCode::kUsage,
         "--ranks and --hostfile start ranks, but mpirun or srun started {} already; leave "
         "them out, or start strata without mpirun and srun",
         launch.ranks == 1 ? "this one" : "these");
  }
}

int launch_ranks(const config::CommandLine& line) {
  const LaunchSize size{.ranks = line.count("ranks", 1, 1, kMostRanks),
                        .hostfile = line.value("hostfile", "")};
  if (line.has("hostfile")) {
    require_hosts(size.hostfile);
  }
  require_temporary_directory();
  std::vector<std::string> words;
  const auto run = [&](int errors, const std::function<void()>& poll) {
    std::ranges::copy(rank_words(line), std::back_inserter(words));
    return run_child(words, {.output = STDOUT_FILENO, .errors = errors}, poll);
  };
  int code = 0;
  if (std::getenv("SLURM_JOB_ID") != nullptr) {
    words = slurm_words(size);
    code = run(STDERR_FILENO, [] {});
  } else {
    const LaunchProgram& launcher = launcher_for(size.ranks);
    words = launcher.words(size);
    FilteredErrors errors(launcher);
    code = run(errors.end_to_write(), [&] { errors.pass(); });
  }
  if (code == 128 + SIGUSR1 && train::stop_request() == train::StopRequest::kStop) {
    // It came before the ranks could take it.
    print_error("strata: stopped on request before the ranks had started; start it again\n");
    return static_cast<int>(ExitCode::kStoppedEarly);
  }
  return code;
}

}  // namespace strata::app
