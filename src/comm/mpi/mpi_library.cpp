#include "strata/comm/mpi_library.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <sys/uio.h>
#include <unistd.h>

#include "strata/core/environment.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::comm {
namespace {

/// The first of these variables that is set to a number.
std::optional<std::int64_t> number_in(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const text = std::getenv(name);
    std::int64_t number = 0;
    if (text != nullptr && parse_int64(text, number)) {
      return number;
    }
  }
  return std::nullopt;
}

/// Whether a user started this process in a shell that is a task of a step of Slurm, as `srun
/// --pty` starts one: it has a terminal, and a process group other than the task's.
bool is_in_shell_of_step() {
  const std::optional<std::int64_t> task = number_in({"SLURM_TASK_PID"});
  const pid_t group = task ? ::getpgid(static_cast<pid_t>(*task)) : -1;
  if (group < 0 || group == ::getpgrp()) {
    return false;
  }
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  return terminal >= 0 && ::close(terminal) == 0;
}

/// Whether the kernel lets a process read the memory of another: containers often forbid the call,
/// even on the process itself. Open MPI's messages on a node would fail; UCX, which MPICH uses,
/// tries the call itself.
bool can_read_processes() {
  char from = 1;
  char to = 0;
  const iovec source{&from, 1};
  const iovec target{&to, 1};
  return ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == 1;
}

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
std::vector<std::string> open_mpi_options(const LaunchSize& of) {
  std::vector<std::string> words{"-n",        std::to_string(of.ranks),
                                 "--map-by",  of.hostfile.empty() ? "slot:OVERSUBSCRIBE" : "slot",
                                 "--bind-to", "none"};
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

int same_code(int code, StopAsked /*stop*/) {
  return code;
}

/// Hydra's own files have lines "HOST:RANKS". It hands all variables to all ranks.
std::vector<std::string> hydra_options(const LaunchSize& of) {
  constexpr std::string_view kSlots = "slots=";
  std::string hosts;
  for (const std::string& line : of.hosts) {
    const std::vector<std::string> words = split_words(line, " \t");
    const auto slots = std::ranges::find_if(
        words, [&](const std::string& word) { return word.starts_with(kSlots); });
    hosts += hosts.empty() ? "" : ",";
    hosts += words.front();
    if (slots != words.end()) {
      hosts += ":" + slots->substr(kSlots.size());
    } else if (words.front().find(':') == std::string::npos) {
      hosts += ":1";
    }
  }
  std::vector<std::string> words{"-n", std::to_string(of.ranks), "-bind-to", "none"};
  const bool scheduled =
      std::ranges::any_of(std::array{"PBS_NODEFILE", "LSB_HOSTS", "LSB_MCPU_HOSTS"},
                          [](const char* name) { return std::getenv(name) != nullptr; });
  if (!hosts.empty() || !scheduled) {
    words.insert(words.begin(), {"-hosts", hosts.empty() ? "localhost" : hosts});
  }
  return words;
}

/// Hydra ends with the number of the signal that ended a rank. Up to 4.0 it may end with 0 after
/// it passed a signal on, whatever the ranks' code was; a run that was done says so when it is
/// started again.
int hydra_code(int code, StopAsked stop) {
  constexpr std::array kSignals{7, 8, 9, 11, 15};  // no codes of strata
  if (std::ranges::find(kSignals, code) != kSignals.end()) {
    return 128 + code;
  }
  return code == 0 && stop == StopAsked::kYes ? static_cast<int>(ExitCode::kStoppedEarly) : code;
}

/// The launcher from Open MPI 5 on is PRRTE, called prterun in messages.
constexpr LaunchProgram prrte_program(std::string_view mpi_library, std::string_view version) {
  return {.family = MpiFamily::kOpenMpi,
          .mpi_library = mpi_library,
          .slurm_type = "pmix",
          .package = "openmpi-bin",
          .names = {"mpirun", "mpirun.openmpi"},
          .version = version,
          .options = open_mpi_options,
          .exit_code = same_code,
          .blocks = {"prterun detected that one or more processes exited with non-zero",
                     "prterun has exited due to process rank", "MPI_ABORT was invoked on rank"},
          .lines = {"PRTE: Forwarding signal ", "sent help message help-mpi-api.txt / ",
                    "Set MCA parameter \"base_help_aggregate\" to 0"},
          .buffers_partial_lines = true};
}

/// Another one needs a row here, and its variables in launch_in_environment().
constexpr std::array kLaunchPrograms{
    LaunchProgram{.family = MpiFamily::kOpenMpi,
                  .mpi_library = "Open MPI v4.",
                  .slurm_type = "pmix",
                  .package = "openmpi-bin",
                  .names = {"mpirun", "mpirun.openmpi"},
                  .version = "mpirun (Open MPI) 4.",
                  .options = open_mpi_options,
                  .exit_code = same_code,
                  .blocks = {"Primary job  terminated normally, but",
                             "mpirun detected that one or more processes exited with non-zero",
                             "MPI_ABORT was invoked on rank"},
                  .lines = {"mpirun: Forwarding signal ", "sent help message help-mpi-api.txt / ",
                            "Set MCA parameter \"orte_base_help_aggregate\" to 0"}},
    prrte_program("Open MPI v5.", "mpirun (Open MPI) 5."),
    prrte_program("Open MPI v6.", "mpirun (Open MPI) 6."),
    LaunchProgram{.family = MpiFamily::kMpich,
                  .mpi_library = "MPICH Version:",
                  .slurm_type = "pmi2",
                  .package = "mpich",
                  .names = {"mpirun", "mpiexec.hydra"},
                  .version = "HYDRA build details:",
                  .options = hydra_options,
                  .exit_code = hydra_code,
                  .blocks = {},
                  .lines = {"application called MPI_Abort(MPI_COMM_WORLD, "}}};

}  // namespace

Launch launch_in_environment() {
  const auto ranks = number_in({"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"});
  const auto rank = number_in({"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK",
                               "PMI_RANK", "PALS_RANKID", "SLURM_PROCID", "FLUX_TASK_RANK"});
  if (ranks) {
    return {.rank = rank.value_or(0), .ranks = *ranks, .by_launcher = true};
  }
  if (is_in_shell_of_step()) {
    return {};
  }
  const auto tasks = number_in({"SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE"});
  const bool is_launched =
      std::getenv("STRATA_MPI") != nullptr ||
      number_in({"PMIX_RANK", "PMI_RANK", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK"});
  return {.rank = rank.value_or(0),
          .ranks = tasks.value_or(is_launched ? 0 : 1),
          .by_launcher = tasks || is_launched};
}

// Under mpirun in a Slurm job the ranks of its own node lack the step's number, but all have the
// namespace. A requeued job repeats it.
std::string launch_name() {
  const std::string space = environment("PMIX_NAMESPACE");
  return !space.empty() ? space + "." + environment("SLURM_RESTART_COUNT")
                        : environment("SLURM_JOB_ID") + "." + environment("SLURM_STEP_ID") +
                              environment("PMI_JOBID") + environment("STRATA_LAUNCH");
}

std::string mpi_library_text() {
  std::vector<char> text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  // MPICH goes on with its build's settings.
  return fmt::format("{}",
                     fmt::join(split_words(split_words(text.data(), ",\n").front(), " \t"), " "));
}

void prepare_mpi_library() {
  // Open MPI would yield the core in every call that finds no message, also between operations,
  // where the rank has work to do. Request::wait() and set_mpi_idle() yield.
  ::setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
  if (!can_read_processes()) {
    ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    ::setenv("OMPI_MCA_smsc", "^cma", 0);  // the same in Open MPI 5
  }
  const std::string library = mpi_library_text();
  if (library.starts_with("Open MPI v") && !library.starts_with("Open MPI v4.")) {
    // Otherwise it prints a line for each pair of ranks of a host that has IPv4 and IPv6.
    ::setenv("OMPI_MCA_reachable", "weighted", 0);
  }
}

// Source of the functions and variables: UCX, src/ucs/debug.
void take_signals_from_ucx() {
  static auto* const kGiveBackAll =
      reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "ucs_debug_disable_signals"));
  static auto* const kGiveBack =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "ucs_debug_disable_signal"));
  if (kGiveBackAll != nullptr && kGiveBack != nullptr) {
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    const bool took_hangup = hangup.sa_handler != SIG_DFL && hangup.sa_handler != SIG_IGN;
    const bool user_set_errors =
        std::getenv("UCX_HANDLE_ERRORS") != nullptr || std::getenv("UCX_ERROR_SIGNALS") != nullptr;
    if (!user_set_errors) {
      kGiveBackAll();
    } else if (took_hangup && std::getenv("UCX_DEBUG_SIGNO") == nullptr) {
      kGiveBack(SIGHUP);
    }
    return;  // It has read its variables, and would warn of later ones.
  }
  // Where MPI loads UCX when it starts.
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);
  ::setenv("UCX_DEBUG_SIGNO", "0", 0);
}

void set_mpi_idle(WhileIdle does) {
  static auto* const kSetYield =
      reinterpret_cast<bool (*)(bool)>(dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle"));
  if (kSetYield != nullptr) {
    kSetYield(does == WhileIdle::kYield);
  }
}

const LaunchProgram* launch_program(std::string_view library) {
  const auto* const found = std::ranges::find_if(kLaunchPrograms, [&](const LaunchProgram& row) {
    return library.starts_with(row.mpi_library);
  });
  return found == kLaunchPrograms.end() ? nullptr : found;
}

}  // namespace strata::comm
