#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/comm/mpi.hpp"
#include "strata/config/command.hpp"
#include "strata/core/log.hpp"
#include "strata/train/receipts.hpp"

namespace strata::app {

/// A run with receipts, and how it is computed again.
struct ReplayedRun {
  std::filesystem::path directory;
  std::vector<std::string> settings;  ///< of the command line
  train::Receipts receipts;           ///< on rank 0: the file of a run that goes on grows
};

/// Steps that were computed again.
struct Replayed {
  std::int64_t first = 1;
  std::int64_t last = 1;
  /// The run had other settings in these steps, so nothing was computed.
  bool other_settings = false;
  train::Comparison compared;  ///< on rank 0
  nlohmann::ordered_json environment;
};

/// What the numbers of a start's steps depend on.
[[nodiscard]] nlohmann::json identity_in(nlohmann::json start);

/// Computes the steps up to `last` from the checkpoint before `first` on, and compares.
/// Communication: collective over the world. Throws: AgreedError.
[[nodiscard]] Replayed replay(const ReplayedRun& run, std::int64_t first, std::int64_t last,
                              comm::MpiSession& mpi, const config::FailureHandler& on_failure,
                              Log& log);

}  // namespace strata::app
