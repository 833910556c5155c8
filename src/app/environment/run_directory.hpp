#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "strata/comm/mpi.hpp"
#include "strata/core/log.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/io/empty_directories.hpp"
#include "strata/plan/plan.hpp"

#include "environment/run_inputs.hpp"

namespace strata::app {

/// Makes a directory that a setting or an option names. Throws: Error(kUsage).
void make_directory(const std::filesystem::path& directory, std::string_view setting);

/// The directory of a run, locked by rank 0 for as long as the run writes to it.
class RunDirectory {
 public:
  /// Makes run.dir and takes its lock. Communication: collective over the world.
  /// Throws: AgreedError(kUsage) where the directory cannot be made, another run holds its lock, or
  /// ranks see another directory than rank 0.
  RunDirectory(comm::MpiSession& mpi, const config::RunConfig& config, Log& log);

  /// Null on ranks other than 0.
  [[nodiscard]] const io::DirectoryLock* lock() const { return lock_ ? &*lock_ : nullptr; }

 private:
  std::optional<io::EmptyDirectories> unused_;
  std::optional<io::DirectoryLock> lock_;
};

/// Makes the directory of the checkpoints, opens the log file and, for a run without a checkpoint,
/// keeps the metrics of an earlier attempt under another name. Rank 0 writes. Returns
/// train::bits_change().
/// Communication: collective over the world.
/// Throws: AgreedError(kCheckpoint) where an earlier run has lost its checkpoints, or where there
/// is no space for one.
[[nodiscard]] std::string begin_run(comm::MpiSession& mpi, const RunInputs& inputs,
                                    const plan::Plan& plan, Log& log);

}  // namespace strata::app
