#include "commands/planning/doctor_report.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/text.hpp"
#include "strata/device/gpu_info.hpp"

namespace strata::app {

// As JSON, without the placement. Found by its argument's type, so not in the anonymous namespace.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank_on_node, ranks_on_node, instruction_set,
                                   gpu_name, gpu_memory_bytes, gpu_free_bytes, unreachable,
                                   driver_version, runtime_version, gpu_failure, nccl_absence,
                                   clock_offset_seconds, open_files, locked_memory_bytes,
                                   interfaces, versions)

namespace {

using Problems = std::vector<std::string>;

template <typename Holds>
std::vector<std::size_t> ranks_where(std::span<const RankFacts> ranks, const Holds& holds) {
  std::vector<std::size_t> found;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (holds(ranks[r])) {
      found.push_back(r);
    }
  }
  return found;
}

bool has_gpu(const RankFacts& facts) {
  return !facts.gpu_bus_id.empty();
}

void check_gpus(std::span<const RankFacts> ranks, Problems& found) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].gpu_failure.empty()) {
      found.push_back(fmt::format("rank {} on {}: {}", r, ranks[r].host, ranks[r].gpu_failure));
    }
  }
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> users;
  for (const std::size_t r : ranks_where(ranks, has_gpu)) {
    // By uuid: MIG slices of one card share its bus id.
    users[{ranks[r].host, ranks[r].gpu_uuid}].push_back(r);
  }
  for (const auto& [gpu, sharers] : users) {
    if (sharers.size() > 1) {
      found.push_back(fmt::format(
          "{} share the GPU {} of {}: start as many ranks on a node as it has GPUs, and let each "
          "see all of them (srun --gpu-bind=none)",
          ranks_text(sharers), ranks[sharers.front()].gpu_bus_id, gpu.first));
    }
  }
  const std::vector<std::size_t> without =
      ranks_where(ranks, [](const RankFacts& facts) { return !has_gpu(facts); });
  if (!without.empty() && without.size() < ranks.size()) {
    found.push_back(
        fmt::format("{} see no GPU where others do ({}): ask for GPUs on every node, or set "
                    "run.device = cpu",
                    ranks_text(without), ranks[without.front()].host));
  }
  for (const std::size_t r :
       ranks_where(ranks, [](const RankFacts& facts) { return !facts.unreachable.empty(); })) {
    found.push_back(fmt::format(
        "the GPU {} of rank {} on {} has no peer-to-peer access to {}: messages between them go "
        "through host memory. Where the cards are connected, look at the BIOS (ACS, IOMMU) and at "
        "nvidia-smi topo -p2p r",
        ranks[r].gpu_bus_id, r, ranks[r].host, fmt::join(ranks[r].unreachable, ", ")));
  }
}

void check_drivers(std::span<const RankFacts> ranks, Problems& found) {
  std::map<std::string, const RankFacts*> hosts;
  for (const RankFacts& facts : ranks) {
    hosts.emplace(facts.host, &facts);
  }
  for (const auto& [host, facts] : hosts) {
    // Minor version compatibility: an older driver supports a newer runtime of its major version.
    if (facts->driver_version > 0 && facts->driver_version / 1000 < facts->runtime_version / 1000) {
      found.push_back(fmt::format(
          "the driver of {} supports CUDA up to {} and this executable is built with {}: update "
          "the "
          "driver, or build with CUDA {}.x",
          host, device::cuda_version_text(facts->driver_version),
          device::cuda_version_text(facts->runtime_version), facts->driver_version / 1000));
    }
  }
}

void check_libraries(std::span<const RankFacts> ranks, Problems& found) {
  // Without GPUs these libraries are not loaded.
  const bool needed = std::any_of(ranks.begin(), ranks.end(), has_gpu);
  std::set<std::string> reported;
  for (const RankFacts& facts : ranks) {
    for (const VersionFact& library : facts.versions) {
      if (needed && library.version.find("not found") != std::string::npos &&
          reported.insert(facts.host + library.name).second) {
        found.push_back(
            fmt::format("{} is {} on {}: install it, or put its directory into LD_LIBRARY_PATH",
                        library.name, library.version, facts.host));
      }
    }
    if (needed && !facts.nccl_absence.empty() && ranks.size() > 1 &&
        reported.insert(facts.host + facts.nccl_absence).second) {
      found.push_back(fmt::format("{}: {}", facts.host, facts.nccl_absence));
    }
  }
  std::vector<std::string> hosts;
  std::vector<std::vector<VersionFact>> versions;
  hosts.reserve(ranks.size());
  versions.reserve(ranks.size());
  for (const RankFacts& facts : ranks) {
    hosts.push_back(facts.host);
    versions.push_back(facts.versions);
  }
  const Problems differ = differing_facts(hosts, versions);
  found.insert(found.end(), differ.begin(), differ.end());
}

/// The largest difference between two ranks' clocks.
double clock_skew_seconds(std::span<const RankFacts> ranks) {
  const auto [least, most] = std::ranges::minmax(ranks, {}, &RankFacts::clock_offset_seconds);
  return most.clock_offset_seconds - least.clock_offset_seconds;
}

bool spans_nodes(std::span<const RankFacts> ranks) {
  return std::ranges::any_of(
      ranks, [&](const RankFacts& facts) { return facts.host != ranks.front().host; });
}

/// Reports each problem of the system once for its first host.
void check_system(std::span<const RankFacts> ranks, Problems& found) {
  constexpr double kMostSkewSeconds = 1.0;
  constexpr std::int64_t kLeastOpenFiles = 1024;
  constexpr std::int64_t kLeastLockedBytes = std::int64_t{64} << 20;
  if (const double skew = clock_skew_seconds(ranks); skew > kMostSkewSeconds) {
    found.push_back(fmt::format(
        "the clocks of the ranks differ by {:.1f} s: synchronize the nodes (chrony, NTP)", skew));
  }
  const auto report_first = [&](const auto& holds, const auto& text_of) {
    const auto facts = std::ranges::find_if(ranks, holds);
    if (facts != ranks.end()) {
      found.push_back(facts->host + ": " + text_of(*facts));
    }
  };
  report_first(
      [&](const RankFacts& facts) {
        return facts.open_files != 0 && facts.open_files < kLeastOpenFiles;
      },
      [&](const RankFacts& facts) {
        return fmt::format("a rank may open {} files: raise the limit to {} (ulimit -n)",
                           facts.open_files, kLeastOpenFiles);
      });
  report_first(
      [&](const RankFacts& facts) {
        return !facts.fabric.empty() && facts.locked_memory_bytes != 0 &&
               facts.locked_memory_bytes < kLeastLockedBytes;
      },
      [](const RankFacts& facts) {
        return fmt::format(
            "a rank may lock {} of memory, which is too little for {}: lift the limit (ulimit -l "
            "unlimited, LimitMEMLOCK of slurmd)",
            bytes_text(facts.locked_memory_bytes), facts.fabric.front());
      });
  if (spans_nodes(ranks)) {
    report_first([](const RankFacts& facts) { return facts.interfaces.empty(); },
                 [](const RankFacts&) {
                   return "no network interface is up, so other nodes cannot reach it";
                 });
  }
}

}  // namespace

std::string system_text(std::span<const RankFacts> ranks) {
  const RankFacts& first = ranks.front();
  const auto limit = [](std::int64_t value, const std::string& text) {
    return value == 0 ? std::string("unlimited") : text;
  };
  return fmt::format(
      "clocks: at most {:.3f} s apart\n"
      "limits: {} open files, {} of locked memory, {} CPUs of time\n"
      "interfaces of {}: {}; RDMA devices: {}\n"
      "loaded: {}\n",
      clock_skew_seconds(ranks), limit(first.open_files, count_text(first.open_files)),
      limit(first.locked_memory_bytes, bytes_text(first.locked_memory_bytes)),
      first.cpu_quota == 0.0 ? "all" : fmt::format("{:.4g}", first.cpu_quota), first.host,
      first.interfaces.empty() ? "none" : fmt::format("{}", fmt::join(first.interfaces, ", ")),
      first.fabric.empty() ? "none" : fmt::format("{}", fmt::join(first.fabric, ", ")),
      libraries_text(first.libraries));
}

std::string facts_text(std::span<const RankFacts> ranks) {
  std::vector<std::vector<std::string>> rows{
      {"rank", "host", "on node", "cores", "threads", "isa", "GPU", "bus", "memory free"}};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankFacts& facts = ranks[r];
    rows.push_back({fmt::format("{}", r), facts.host,
                    fmt::format("{} of {}", facts.rank_on_node, facts.ranks_on_node), facts.cores,
                    fmt::format("{}", facts.threads), facts.instruction_set,
                    has_gpu(facts) ? facts.gpu_name : "none",
                    has_gpu(facts) ? facts.gpu_bus_id : "-",
                    has_gpu(facts) ? fmt::format("{} of {}", bytes_text(facts.gpu_free_bytes),
                                                 bytes_text(facts.gpu_memory_bytes))
                                   : "-"});
  }
  return table_text(rows);
}

std::vector<std::string> problems(std::span<const RankFacts> ranks) {
  Problems found;
  check_gpus(ranks, found);
  check_drivers(ranks, found);
  check_libraries(ranks, found);
  const std::vector<Placement> placements(ranks.begin(), ranks.end());
  const Problems placed = placement_problems(placements, Oversubscription::kReported);
  found.insert(found.end(), placed.begin(), placed.end());
  check_system(ranks, found);
  return found;
}

std::string packed(const RankFacts& facts) {
  nlohmann::json all(facts);
  all["placement"] = static_cast<const Placement&>(facts);
  return all.dump();
}

RankFacts unpacked(const std::string& text) {
  const nlohmann::json all = nlohmann::json::parse(text);
  auto facts = all.get<RankFacts>();
  static_cast<Placement&>(facts) = all.at("placement").get<Placement>();
  return facts;
}

}  // namespace strata::app
