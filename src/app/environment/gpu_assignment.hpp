#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strata/comm/mpi.hpp"

namespace strata::app {

/// Position of a rank among the ranks that see the same GPUs. GPUs are assigned in this order.
struct GpuAssignment {
  std::int64_t local_rank = 0;
  std::int64_t ranks = 1;
};

/// `seen`: node and visible GPUs of each rank, in rank order. Pre: 0 <= rank < seen.size().
[[nodiscard]] GpuAssignment assign_among(std::span<const std::string> seen, std::int64_t rank);

/// This rank's assignment. GPUs are identified by uuid, so that MIG slices count as separate GPUs.
/// Communication: collective over the world.
[[nodiscard]] GpuAssignment assign_gpus(comm::MpiSession& mpi);

}  // namespace strata::app
