#pragma once

#include <cstdint>

#include "strata/train/setup.hpp"

namespace strata::train {

struct ResourceUsage {
  std::int64_t resident_bytes = 0;  ///< at most, of host memory
  std::int64_t mapped_bytes = 0;    ///< of it mapped files: libraries and the shards of data sets
  std::int64_t base_bytes = 0;     ///< of it private_bytes() before the plan's memory was allocated
  std::int64_t planned_bytes = 0;  ///< plan::host_bytes()
  std::int64_t scratch_bytes = 0;
  std::int64_t graphs = 0;  ///< cached CUDA graphs

  /// What training has added at its peak, to be held against planned_bytes.
  [[nodiscard]] std::int64_t used_bytes() const {
    return resident_bytes - mapped_bytes - base_bytes;
  }
};

/// Logs what the ranks have used: memory, on GPUs also workspaces and CUDA graphs. `mine`: base,
/// planned bytes and graphs of this rank. Returns: the usage of the rank with the most resident
/// memory. Communication: one all-gather over the world.
ResourceUsage log_resource_usage(const TrainerSetup& setup, ResourceUsage mine);

}  // namespace strata::train
