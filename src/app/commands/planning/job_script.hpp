#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"

#include "commands/planning/script_words.hpp"

namespace strata::app {

/// What starts the ranks in a job. Flux has its own.
enum class Launcher { kSrun, kMpirun };

constexpr auto enum_names(Launcher) {
  return names_in_order("srun", "mpirun");
}

/// A job script's contents. Empty texts and zeros leave their lines out.
struct JobScript {
  Scheduler scheduler = Scheduler::kSlurm;
  Launcher launcher = Launcher::kSrun;
  std::string mpi_type = "pmix";  ///< what the ranks' MPI library speaks, as in srun --mpi=pmix
  std::string command;            ///< that makes the script
  std::string grid;               ///< as in "2 data x 2 pipeline x 1 tensor"
  std::string file;               ///< of the script, which a job submits again
  std::string name;
  std::int64_t least_nodes = 1;  ///< fewer than `nodes`: the job takes what it gets
  std::int64_t nodes = 1;        ///< that train
  /// Further nodes of the allocation, which replace lost ones; without a value the scheduler ends
  /// the job with a lost node.
  std::optional<std::int64_t> spares;
  std::int64_t ranks_per_node = 1;
  std::int64_t cpus_per_task = 1;
  std::int64_t gpus_per_node = 0;
  std::int64_t memory_gib = 0;  ///< of a node
  std::int64_t limit_seconds = 0;
  std::int64_t signal_seconds = 0;  ///< ahead of the limit
  std::int64_t model_ranks = 1;     ///< of one replica
  std::int64_t lanes = 1;
  std::int64_t chain = 1;   ///< jobs that follow each other, instead of one that requeues itself
  std::int64_t starts = 3;  ///< consecutive, without a new checkpoint, before it gives up
  std::string partition;
  std::string account;
  std::string qos;
  std::string constraint;
  std::string modules;
  std::string container;
  std::string fence;
  std::string hostfile;
  std::string program;
  std::string config;
  std::string run_directory;
  std::vector<std::string> settings;
  /// Further settings of each element of a Slurm job array; empty: no array.
  std::vector<std::vector<std::string>> elements;
};

/// Throws: Error(kUsage) for a text that require_one_line() or the scheduler refuses.
[[nodiscard]] std::string script_text(const JobScript& script);

/// The command that submits a script, as in "sbatch --parsable".
[[nodiscard]] std::string submit_command(Scheduler scheduler);
/// Its option for a job that runs only if the job `before` ended unfinished, for a shell.
[[nodiscard]] std::string submit_after(Scheduler scheduler, const std::string& before);

}  // namespace strata::app
