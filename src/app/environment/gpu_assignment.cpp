#include "environment/gpu_assignment.hpp"

#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/core/host_name.hpp"
#include "strata/device/gpu_info.hpp"

namespace strata::app {

GpuAssignment assign_among(std::span<const std::string> seen, std::int64_t rank) {
  const std::string& mine = seen[static_cast<std::size_t>(rank)];
  const auto before = seen.first(static_cast<std::size_t>(rank));
  return {.local_rank = std::count(before.begin(), before.end(), mine),
          .ranks = std::count(seen.begin(), seen.end(), mine)};
}

GpuAssignment assign_gpus(comm::MpiSession& mpi) {
  std::string mine = host_name();
  try {
    for (const device::GpuInfo& gpu : device::gpus()) {
      mine += " " + gpu.uuid;
    }
  } catch (const Error&) {
    // Reported where the rank opens its GPU.
  }
  return assign_among(mpi.world().all_gather_texts(mine), mpi.world().rank());
}

}  // namespace strata::app
