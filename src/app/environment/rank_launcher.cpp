#include "environment/rank_launcher.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "strata/comm/mpi_library.hpp"
#include "strata/config/options.hpp"
#include "strata/core/host_name.hpp"
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

/// The first line that a program says of its version; empty where PATH has no such program.
std::string version_of(std::string_view program) {
  const io::CommandOutput version = io::output_of(fmt::format("{} --version 2>/dev/null", program));
  return version.succeeded ? version.text.substr(0, version.text.find('\n')) : "";
}

/// The name in PATH of the launcher of the MPI library that this program uses. That of another
/// library would start processes that do not know of each other.
std::string_view launcher_in_path(const comm::LaunchProgram* launcher, std::int64_t ranks) {
  if (launcher != nullptr) {
    for (const std::string_view name : launcher->names) {
      if (version_of(name).starts_with(launcher->version)) {
        return name;
      }
    }
  }
  const std::string found = version_of("mpirun");
  fail(
      ExitCode::kUsage,
      "--ranks needs the mpirun of {}, with which strata was built, and {}; install it{}, load its "
      "module, or start the ranks yourself, as with mpirun -n {} strata",
      comm::mpi_library_text(),
      found.empty() ? "there is no mpirun in PATH" : fmt::format("mpirun is \"{}\"", found),
      launcher == nullptr ? "" : fmt::format(" (Debian: {})", launcher->package), ranks);
}

/// Inside a Slurm job, srun starts ranks on its nodes, bound to the cores that it gives them.
std::vector<std::string> slurm_words(const comm::LaunchSize& of,
                                     const comm::LaunchProgram* launcher) {
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
  std::vector<std::string> words{
      "srun", fmt::format("--mpi={}", launcher == nullptr ? "pmix" : launcher->slurm_type),
      "--kill-on-bad-exit=1", fmt::format("--ntasks={}", of.ranks)};
  if (std::getenv("SLURM_STEP_ID") != nullptr) {
    words.emplace_back("--overlap");  // a shell of srun --pty holds the cores
  }
  return words;
}

/// Passes on what ranks and launcher write to standard error, but for what the launcher need not
/// say.
class FilteredErrors {
 public:
  explicit FilteredErrors(const comm::LaunchProgram& launcher) : launcher_(launcher) {
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
    const auto begins = [&](std::string_view begin) {
      return !begin.empty() && line.starts_with(begin);
    };
    const auto has = [&](std::string_view part) {
      return !part.empty() && line.find(part) != std::string::npos;
    };
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

  const comm::LaunchProgram& launcher_;
  std::array<int, 2> ends_{};
  std::string line_;
  std::string rule_;  ///< the line before, where it is one
  bool in_block_ = false;
};

/// The lines of a hostfile that name hosts.
std::vector<std::string> read_hosts(const std::string& hostfile) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
  const std::string file = io::read_input(hostfile, kMostBytes, ExitCode::kUsage);
  if (file.find('\r') != std::string::npos) {
    fail(ExitCode::kUsage,
         "--hostfile={} has line ends of Windows, which launchers cannot read; convert it, as with "
         "sed -i 's/\\r//' {}",
         hostfile, hostfile);
  }
  std::vector<std::string> lines = split_words(file, "\n");
  std::erase_if(lines, [](const std::string& line) {
    const std::string_view text = trimmed(line);
    return text.empty() || text.starts_with('#');
  });
  if (lines.empty()) {
    fail(ExitCode::kUsage,
         "--hostfile={} names no host; give it a line for each, as in \"node1 slots=4\"", hostfile);
  }
  return lines;
}

/// Passes the standard input on to the launcher, whose process group may not read a terminal, in
/// pieces as they come.
class PassedInput {
 public:
  PassedInput() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) != 0) {
      fail(ExitCode::kPeer, "cannot open a socket; raise the limit on open files (ulimit -n)");
    }
  }
  PassedInput(const PassedInput&) = delete;
  PassedInput& operator=(const PassedInput&) = delete;
  ~PassedInput() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  [[nodiscard]] int end_to_read() const { return ends_[0]; }

  /// Passes on what is there and the reader has room for.
  void pass() {
    while (!has_ended_) {
      if (piece_.empty()) {
        std::array<char, 4096> buffer{};
        pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
        if (::poll(&input, 1, 0) <= 0) {
          return;
        }
        const ssize_t bytes = ::read(STDIN_FILENO, buffer.data(), buffer.size());
        if (bytes < 0 && errno == EINTR) {
          return;
        }
        has_ended_ = bytes <= 0;
        piece_.assign(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(0, bytes)));
      }
      const ssize_t sent =
          ::send(ends_[1], piece_.data(), piece_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) {
        return;
      }
      piece_.erase(0, static_cast<std::size_t>(sent));
    }
    ::shutdown(ends_[1], SHUT_WR);
  }

 private:
  std::array<int, 2> ends_{};
  std::string piece_;
  bool has_ended_ = false;
};

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
  const std::int64_t ranks = line.count("ranks", 1, 1, config::kMostRanks);
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
  const comm::LaunchSize size{.ranks = line.count("ranks", 1, 1, config::kMostRanks),
                              .hostfile = line.value("hostfile", ""),
                              .hosts = line.has("hostfile") ? read_hosts(line.value("hostfile", ""))
                                                            : std::vector<std::string>()};
  const comm::LaunchProgram* const launcher = comm::launch_program();
  ::setenv("STRATA_LAUNCH", fmt::format("{}.{}", host_name(), ::getpid()).c_str(), 1);
  require_temporary_directory();
  std::vector<std::string> words;
  // Other commands leave what a user types to the shell.
  std::optional<PassedInput> input;
  if (line.has("chat")) {
    input.emplace();
  }
  const auto run = [&](int errors, const std::function<void()>& poll) {
    std::ranges::copy(rank_words(line), std::back_inserter(words));
    return run_child(
        words,
        {.output = STDOUT_FILENO, .errors = errors, .input = input ? input->end_to_read() : -1},
        [&] {
          poll();
          if (input) {
            input->pass();
          }
        });
  };
  int code = 0;
  if (std::getenv("SLURM_JOB_ID") != nullptr) {
    words = slurm_words(size, launcher);
    code = run(STDERR_FILENO, [] {});
  } else {
    words.emplace_back(launcher_in_path(launcher, size.ranks));
    std::ranges::copy(launcher->options(size), std::back_inserter(words));
    FilteredErrors errors(*launcher);
    code = run(errors.end_to_write(), [&] { errors.pass(); });
    code = launcher->exit_code(code, train::stop_request() == train::StopRequest::kStop
                                         ? comm::StopAsked::kYes
                                         : comm::StopAsked::kNo);
  }
  if (code == 128 + SIGUSR1 && train::stop_request() == train::StopRequest::kStop) {
    // It came before the ranks could take it.
    print_error("strata: stopped on request before the ranks had started; start it again\n");
    return static_cast<int>(ExitCode::kStoppedEarly);
  }
  return code;
}

}  // namespace strata::app
