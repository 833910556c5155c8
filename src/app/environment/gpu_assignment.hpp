#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strata/comm/mpi.hpp"

namespace strata::app {

/// A rank's index among the ranks that see the same GPUs, which are assigned in this order.
struct GpuAssignment {
  std::int64_t local_rank = 0;
  std::int64_t ranks = 1;
};

/// `seen`: the node and GPUs that each rank sees, in order of ranks. Pre: 0 <= rank < seen.size().
[[nodiscard]] GpuAssignment assign_among(std::span<const std::string> seen, std::int64_t rank);

/// This rank's assignment. GPUs are identified by uuid, because MIG slices of a card are separate
/// GPUs. Communication: collective over the world.
[[nodiscard]] GpuAssignment assign_gpus(comm::MpiSession& mpi);

}  // namespace strata::app
