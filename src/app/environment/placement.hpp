#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/device/gpu_info.hpp"

#include "environment/loaded_libraries.hpp"

namespace strata::app {

/// Where a rank runs, what else runs there, and what it loaded. Texts hold no line breaks.
struct Placement {
  std::string host;
  /// The cores that the rank is bound to, as in "0-3", and their number.
  std::string cores;
  std::int64_t core_count = 0;
  /// Cores of the node, and those of them that the job has.
  std::int64_t node_cores = 0;
  std::int64_t job_cores = 0;
  std::int64_t threads = 1;
  double cpu_quota = 0.0;      ///< CPUs that the node's ranks may use together; 0: no limit
  std::int64_t others = 0;     ///< processes and threads of others that compute now
  std::int64_t gpus_seen = 0;  ///< GPUs that the rank sees
  /// The GPU that the rank uses; empty without one.
  std::string gpu_bus_id;
  std::string gpu_uuid;
  /// The processors near the GPU, where the rank may use none of them; else empty.
  std::string gpu_far_from;
  std::string gpus_per_task;           ///< Slurm's option of the launch; empty: not given
  std::vector<std::string> fabric;     ///< devices of InfiniBand, Omni-Path, Slingshot and EFA
  std::vector<VersionFact> libraries;  ///< of messages, with the loaded files

  friend bool operator==(const Placement&, const Placement&) = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Placement, host, cores, core_count, node_cores, job_cores,
                                   threads, cpu_quota, others, gpus_seen, gpu_bus_id, gpu_uuid,
                                   gpu_far_from, gpus_per_task, fabric, libraries)

/// Where the system says so; tests have files of their own.
struct SystemFiles {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
};

/// This rank's placement but for the GPU and the libraries. `ranks`: of the job on this node.
[[nodiscard]] Placement find_placement(std::int64_t ranks, std::int64_t threads,
                                       const SystemFiles& files = {});
/// Adds the GPU, one of `seen`.
void place_gpu(Placement& placement, const device::GpuInfo& gpu, std::int64_t seen,
               const SystemFiles& files = {});

/// The placements of all ranks. Communication: an all-gather of texts over the world.
[[nodiscard]] std::vector<Placement> gathered(comm::Communicator& world, const Placement& mine);

/// Whether ranks that are not bound may have more threads than the node has cores.
enum class Oversubscription { kAccepted, kReported };

/// Habits of launches and sites that break a run or slow it down, each with what to do; empty where
/// there are none. Pre: `ranks` is in rank order.
[[nodiscard]] std::vector<std::string> placement_problems(std::span<const Placement> ranks,
                                                          Oversubscription oversubscription);

/// The ranks with other facts than rank 0, each value once, and what to do.
/// Pre: hosts and facts are in rank order.
[[nodiscard]] std::vector<std::string> differing_facts(
    std::span<const std::string> hosts, std::span<const std::vector<VersionFact>> facts);

/// As in "ranks 0, 1 and 3", "rank 2"; of many ranks the first.
[[nodiscard]] std::string ranks_text(const std::vector<std::size_t>& ranks);

}  // namespace strata::app
