#pragma once

#include <cstdint>

#include "strata/train/setup.hpp"

namespace strata::train {

struct ResourceUsage {
  std::int64_t resident_bytes = 0;  ///< at most, of host memory
  std::int64_t mapped_bytes = 0;    ///< of it mapped files: libraries and the shards of data sets
  std::int64_t scratch_bytes = 0;
  std::int64_t graphs = 0;
};

/// Logs what the ranks have used: memory, on GPUs also workspaces and `graphs`, the CUDA graphs of
/// this rank. Returns: the usage of the rank with the most resident memory.
/// Communication: one all-gather over the world.
ResourceUsage log_resource_usage(const TrainerSetup& setup, std::int64_t graphs);

}  // namespace strata::train
