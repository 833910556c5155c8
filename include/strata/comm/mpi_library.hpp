#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::comm {

// What strata knows of MPI libraries and of the programs that start their ranks beyond the MPI
// standard.

/// What the launcher's environment says of this process.
struct Launch {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;  ///< 0 where a launcher does not say; 1 without a launcher
  bool by_launcher = false;
};

/// Reads the environment that mpirun, srun or Flux gave this process. A shell that `srun --pty`
/// started is no launcher: its commands are alone.
[[nodiscard]] Launch launch_in_environment();

/// Names the launch, with the same text on all ranks.
[[nodiscard]] std::string launch_name();

/// The library's name and version, as in "Open MPI v4.1.4" and "MPICH Version: 4.0.2".
[[nodiscard]] std::string mpi_library_text();

/// Sets what the library reads when it starts.
void prepare_mpi_library();

/// Gives signals that UCX took before main() their handlers back, and keeps UCX from taking them
/// later: those of crashes, of which strata reports, and SIGHUP. UCX, which MPI libraries load,
/// then does what the variables ask for that the user set (UCX_HANDLE_ERRORS, UCX_ERROR_SIGNALS,
/// UCX_DEBUG_SIGNO). Pre: the program has set no handler.
void take_signals_from_ucx();

enum class WhileIdle { kSpin, kYield };

/// Whether a call of MPI that waits for other ranks gives the core to other processes. MPI has no
/// function for that, and Open MPI's parameter for users, mpi_yield_when_idle, holds for a whole
/// run. For other MPI libraries this changes nothing.
void set_mpi_idle(WhileIdle does);

struct LaunchSize {
  std::int64_t ranks = 1;
  std::string hostfile;            ///< empty: this host
  std::vector<std::string> hosts;  ///< its lines, as in "node1 slots=4"
};

enum class StopAsked { kNo, kYes };
enum class MpiFamily { kOpenMpi, kMpich };

/// A program that starts ranks of one MPI library.
struct LaunchProgram {
  MpiFamily family = MpiFamily::kOpenMpi;
  std::string_view mpi_library;  ///< how mpi_library_text() begins
  std::string_view slurm_type;   ///< as in srun --mpi=pmix
  std::string_view package;      ///< Debian's
  std::array<std::string_view, 2> names;
  std::string_view version;                                   ///< how its --version begins
  std::vector<std::string> (*options)(const LaunchSize& of);  ///< between its name and the ranks'
  /// The ranks' exit code, from its own.
  int (*exit_code)(int code, StopAsked stop);
  /// Its own messages that say no more than the exit code and the ranks' messages: how blocks
  /// between two rules begin, and parts of other lines.
  std::array<std::string_view, 3> blocks;
  std::array<std::string_view, 3> lines;
  /// Whether it buffers a partial line until more output comes, and may then write it to the other
  /// one of standard output and standard error.
  bool buffers_partial_lines = false;
};

/// That of an MPI library, by default of the one which this program uses; null where strata does
/// not know it.
[[nodiscard]] const LaunchProgram* launch_program(std::string_view library = mpi_library_text());

}  // namespace strata::comm
