#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/comm/mpi.hpp"
#include "strata/config/command.hpp"
#include "strata/core/log.hpp"
#include "strata/train/receipts.hpp"
#include "strata/train/step_dump.hpp"

namespace strata::app {

/// Tensors of a replay to write, and where.
struct WantedDump {
  train::DumpedKinds kinds;
  std::int64_t step = 0;
  std::filesystem::path directory;
};

/// A run with receipts, and how it is computed again.
struct ReplayedRun {
  std::filesystem::path directory;
  std::vector<std::string> settings;  ///< of the command line
  train::Receipts receipts;           ///< on rank 0: the file of a run that goes on grows
  std::optional<WantedDump> dump = {};
  bool checkpoints_match = false;  ///< their files were read, and are those of the receipts
};

/// Steps that were computed again.
struct Replayed {
  std::int64_t first = 1;
  std::int64_t last = 1;
  /// The run had other settings in these steps, so nothing was computed.
  bool other_settings = false;
  train::Comparison compared;        ///< on rank 0
  train::Receipts receipts;          ///< of the replay, on rank 0
  std::vector<std::string> tensors;  ///< names of those in digests
  nlohmann::ordered_json environment;
};

/// A run whose receipts are read. Communication: collective over the world. Throws: AgreedError,
/// where they have fewer steps, too.
[[nodiscard]] ReplayedRun read_run(const std::string& directory,
                                   const std::vector<std::string>& settings, comm::MpiSession& mpi,
                                   std::int64_t least_steps = 1);

/// What the numbers of a start's steps depend on.
[[nodiscard]] nlohmann::json identity_in(nlohmann::json start);

/// Computes the steps up to `last` from the checkpoint before `first` on, and compares; writes the
/// run's dump, also where steps differ. Communication: collective over the world. Throws:
/// AgreedError.
[[nodiscard]] Replayed replay(const ReplayedRun& run, std::int64_t first, std::int64_t last,
                              comm::MpiSession& mpi, const config::FailureHandler& on_failure,
                              Log& log);

/// Compares a run with a replay of its steps or of an equal run's, from `first` on, on rank 0.
[[nodiscard]] train::Comparison compared_with(const ReplayedRun& run, const Replayed& replayed,
                                              std::int64_t first);

/// Throws: AgreedError(kCheckpoint) that says to give the settings that the run had.
[[noreturn]] void refuse_other_settings(const ReplayedRun& run);

}  // namespace strata::app
