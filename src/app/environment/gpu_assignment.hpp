#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strata/comm/mpi.hpp"

namespace strata::app {

/// A rank among those that see the same GPUs, who are dealt them in order.
struct GpuAssignment {
  std::int64_t local_rank = 0;
  std::int64_t ranks = 1;
};

/// `seen`: what each rank sees, node and GPUs, in order of ranks. Pre: 0 <= rank < seen.size().
[[nodiscard]] GpuAssignment assign_among(std::span<const std::string> seen, std::int64_t rank);

/// This rank's place. GPUs are told apart by uuid, for the slices of one card (MIG) are GPUs of
/// their own. Communication: collective over the world.
[[nodiscard]] GpuAssignment assign_gpus(comm::MpiSession& mpi);

}  // namespace strata::app
