#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/core/hash.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/ops/instruction_set.hpp"

#include "commands/commands.hpp"
#include "commands/doctor_report.hpp"
#include "environment/cpu_cores.hpp"
#include "environment/gpu_assignment.hpp"
#include "environment/host_name.hpp"

namespace strata::app {
namespace {

/// Tells apart executables of one version that were built from different sources.
std::string executable_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  StreamingHash hash;
  std::vector<char> piece(std::size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.update(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
  }
  return hash_text(hash.digest());
}

void collect_gpu_facts(RankFacts& facts, const GpuAssignment& assignment) {
  const device::CudaVersions versions = device::cuda_versions();
  facts.driver_version = versions.driver;
  facts.runtime_version = versions.runtime;
  try {
    const std::vector<device::GpuInfo> gpus = device::gpus();
    if (gpus.empty()) {
      if (const std::string trouble = device::gpu_trouble(); !trouble.empty()) {
        facts.gpu_failure = "the GPUs do not answer: " + trouble + "; nvidia-smi tells more";
      }
      return;
    }
    const std::int64_t own =
        device::choose_gpu(assignment.local_rank, assignment.ranks, std::ssize(gpus)).index;
    const device::GpuInfo& gpu = gpus[static_cast<std::size_t>(own)];
    facts.gpu_name = gpu.name;
    facts.gpu_bus_id = gpu.bus_id;
    facts.gpu_uuid = gpu.uuid;
    facts.gpu_memory_bytes = gpu.memory_bytes;
    const std::int64_t used = std::min<std::int64_t>(assignment.ranks, std::ssize(gpus));
    for (std::int64_t other = 0; other < used; ++other) {
      if (other != own && !device::has_peer_access(own, other)) {
        facts.unreachable.push_back(gpus[static_cast<std::size_t>(other)].bus_id);
      }
    }
    facts.gpu_free_bytes = device::free_memory_bytes(own);
  } catch (const Error& error) {
    facts.gpu_failure = error.what();
  }
}

/// Communication: collective over the world.
RankFacts collect_facts(comm::MpiSession& mpi) {
  RankFacts facts;
  facts.host = host_name();
  facts.rank_on_node = mpi.rank_on_node();
  facts.ranks_on_node = mpi.ranks_on_node();
  const BoundCores cores = bound_cores();
  facts.cores = cores.text;
  facts.core_count = cores.count;
  facts.threads = default_threads(facts.ranks_on_node);
  facts.instruction_set = name_of(ops::native_instruction_set());
  facts.versions = versions();
  facts.versions.push_back({"executable", executable_hash()});
  facts.nccl_absence = comm::nccl_absence();
  collect_gpu_facts(facts, assign_gpus(mpi));
  return facts;
}

std::string gpus_text(std::span<const RankFacts> ranks) {
  const RankFacts& first = ranks.front();
  if (first.runtime_version == 0) {
    return "GPUs: this executable was built without CUDA; ranks compute on their cores\n";
  }
  const bool any = std::any_of(ranks.begin(), ranks.end(),
                               [](const RankFacts& facts) { return !facts.gpu_bus_id.empty(); });
  return fmt::format("GPUs: {}; CUDA of the driver: {}, of the executable: {}\n",
                     any ? "as above" : "none, ranks compute on their cores",
                     device::cuda_version_text(first.driver_version),
                     device::cuda_version_text(first.runtime_version));
}

}  // namespace

ExitCode doctor_command(comm::MpiSession& mpi, Arguments arguments) {
  if (!arguments.empty()) {
    throw comm::AgreedError(
        ExitCode::kUsage,
        fmt::format("strata doctor takes no \"{}\"; give it alone", arguments.front()));
  }
  std::vector<RankFacts> ranks;
  for (const std::string& text : mpi.world().all_gather_texts(packed(collect_facts(mpi)))) {
    ranks.push_back(unpacked(text));
  }
  const std::vector<std::string> found = problems(ranks);
  if (mpi.world().rank() == 0) {
    fmt::print("{}\n{}{}\n", facts_text(ranks), gpus_text(ranks),
               versions_text(ranks.front().versions));
    for (const std::string& problem : found) {
      fmt::print("- {}\n", problem);
    }
    fmt::print("{}\n",
               found.empty() ? "no problems found" : fmt::format("problems: {}", found.size()));
  }
  return found.empty() ? ExitCode::kDone : ExitCode::kPeer;
}

}  // namespace strata::app
