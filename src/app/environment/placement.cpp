#include "environment/placement.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "strata/core/environment.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/text.hpp"

#include "environment/cpu_cores.hpp"

namespace strata::app {

namespace {

namespace fs = std::filesystem;
using Problems = std::vector<std::string>;
using Ranks = std::vector<std::size_t>;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// Threads of all processes of the node that run or wait for a core, beside `own`: the least of
/// some looks, so that short ones do not count.
std::int64_t running_beside(std::int64_t own, const fs::path& proc) {
  constexpr int kLooks = 5;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int look = 0; look < kLooks; ++look) {
    std::ifstream file(proc / "loadavg");  // "0.20 0.18 0.12 1/80 11206"
    std::string word;
    for (int i = 0; i < 4; ++i) {
      file >> word;
    }
    std::int64_t running = 0;
    if (!file || !parse_int64(word.substr(0, word.find('/')), running)) {
      return 0;
    }
    least = std::min(least, running);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return std::max<std::int64_t>(0, least - own);
}

std::map<std::string, Ranks> ranks_by_host(std::span<const Placement> ranks) {
  std::map<std::string, Ranks> by_host;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    by_host[ranks[r].host].push_back(r);
  }
  return by_host;
}

std::string threads_text(const Ranks& ranks, std::int64_t threads) {
  return fmt::format("{} {} thread{}", ranks.size() == 1 ? "has" : "have", threads,
                     threads == 1 ? "" : "s");
}

std::string cores_text(std::size_t cores) {
  return cores == 1 ? "1 core" : fmt::format("{} cores", cores);
}

/// Ranks of a host whose threads together have too few cores: those bound to a rank's cores or to
/// a part of them, and all.
void check_threads(std::span<const Placement> ranks, Oversubscription unbound, Problems& found) {
  for (const auto& [host, members] : ranks_by_host(ranks)) {
    std::map<std::string, std::set<std::int64_t>> masks;
    std::set<std::int64_t> all;
    for (const std::size_t r : members) {
      masks.try_emplace(ranks[r].cores, core_numbers(ranks[r].cores));
      all.insert(masks[ranks[r].cores].begin(), masks[ranks[r].cores].end());
    }
    std::vector<std::set<std::int64_t>> places;
    places.reserve(masks.size() + 1);
    for (const auto& [text, cores] : masks) {
      places.push_back(cores);
    }
    places.push_back(all);
    std::ranges::stable_sort(places, {}, &std::set<std::int64_t>::size);
    std::set<std::size_t> reported;
    for (const std::set<std::int64_t>& place : places) {
      const bool whole = std::ssize(place) >= ranks[members.front()].node_cores;
      Ranks users;
      std::int64_t threads = 0;
      for (const std::size_t r : members) {
        if (std::ranges::includes(place, masks[ranks[r].cores])) {
          users.push_back(r);
          threads += ranks[r].threads;
        }
      }
      if (place.empty() || threads <= std::ssize(place) ||
          (whole && unbound == Oversubscription::kAccepted) ||
          std::ranges::any_of(users, [&](std::size_t r) { return reported.contains(r); })) {
        continue;
      }
      reported.insert(users.begin(), users.end());
      found.push_back(
          fmt::format("{} {} on {} of {} ({}): start fewer ranks there, or bind them to more or "
                      "other cores (srun --cpus-per-task, mpirun --map-by slot:PE=N)",
                      ranks_text(users), threads_text(users, threads), cores_text(place.size()),
                      host, core_list(place)));
    }
  }
}

/// Launchers that bind each rank to one core leave most cores of a node idle.
void check_idle_cores(std::span<const Placement> ranks, Problems& found) {
  constexpr std::int64_t kCoresPerRank = 4;
  for (const auto& [host, members] : ranks_by_host(ranks)) {
    const std::int64_t cores = ranks[members.front()].job_cores;
    const auto count = std::ssize(members);
    if (std::ranges::all_of(members, [&](std::size_t r) { return ranks[r].core_count == 1; }) &&
        cores >= kCoresPerRank * count) {
      found.push_back(fmt::format(
          "{} {} bound to one core each, and {} of {} cores of {} are idle: give each rank {} "
          "(mpirun --map-by slot:PE={}, srun --cpus-per-task={}), or leave them unbound (mpirun "
          "--bind-to none)",
          ranks_text(members), count == 1 ? "is" : "are", cores - count, cores, host, cores / count,
          cores / count, cores / count));
    }
  }
}

/// A quota of a cgroup is of all ranks of a host.
void check_quotas(std::span<const Placement> ranks, Problems& found) {
  for (const auto& [host, members] : ranks_by_host(ranks)) {
    Ranks users;
    std::int64_t threads = 0;
    double quota = std::numeric_limits<double>::infinity();
    for (const std::size_t r : members) {
      if (ranks[r].cpu_quota > 0.0) {
        users.push_back(r);
        threads += ranks[r].threads;
        quota = std::min(quota, ranks[r].cpu_quota);
      }
    }
    if (static_cast<double>(threads) > quota) {
      found.push_back(fmt::format(
          "{} {}, but the cgroup on {} has a quota of {:.4g} CPUs and stops them in each period: "
          "start fewer ranks there, or ask for more CPUs (srun --cpus-per-task, docker --cpus)",
          ranks_text(users), threads_text(users, threads), host, quota));
    }
  }
}

/// Jobs that share a node without cores of their own.
void check_others(std::span<const Placement> ranks, Problems& found) {
  constexpr std::int64_t kLeastThreads = 4;
  for (const auto& [host, members] : ranks_by_host(ranks)) {
    const Placement& first = ranks[members.front()];
    std::int64_t threads = 0;
    std::int64_t others = 0;
    for (const std::size_t r : members) {
      threads += ranks[r].threads;
      others = std::max(others, ranks[r].others);
    }
    if (first.threads >= kLeastThreads && 2 * others >= first.node_cores &&
        2 * (threads + others) >= 3 * first.node_cores) {
      found.push_back(fmt::format(
          "{} {} on {}, which has {} cores, and {} threads of other processes compute there now: "
          "give each job cores of its own (srun --cpus-per-task, taskset), or set run.threads",
          ranks_text(members), threads_text(members, threads), host, first.node_cores, others));
    }
  }
}

void check_distance(std::span<const Placement> ranks, Problems& found) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].gpu_far_from.empty()) {
      found.push_back(fmt::format(
          "rank {} on {} is bound to the cores {}, but its GPU {} is near the processors {}: "
          "copies and messages cross the node. Bind ranks in the order of the GPUs (srun "
          "--distribution=block:block, mpirun --map-by numa), or do not bind them",
          r, ranks[r].host, ranks[r].cores, ranks[r].gpu_bus_id, ranks[r].gpu_far_from));
    }
  }
}

void check_peers(std::span<const Placement> ranks, Problems& found) {
  for (const auto& [host, members] : ranks_by_host(ranks)) {
    std::set<std::string> gpus;
    for (const std::size_t r : members) {
      gpus.insert(ranks[r].gpu_uuid);
    }
    if (gpus.size() > 1 &&
        std::ranges::all_of(members, [&](std::size_t r) { return ranks[r].gpus_seen == 1; })) {
      const std::string& option = ranks[members.front()].gpus_per_task;
      found.push_back(fmt::format(
          "{} on {} see one GPU each{}: a GPU that a rank does not see may be out of reach of CUDA "
          "IPC, and messages then fail or go through host memory. Ask for GPUs by node "
          "(--gpus-per-node={}) and start the ranks with --gpu-bind=none, without --gpus-per-task: "
          "each takes a GPU of its own",
          ranks_text(members), host,
          option.empty() ? "" : fmt::format(" (SLURM_GPUS_PER_TASK={})", option), gpus.size()));
    }
  }
}

/// Nodes with a fast network that no loaded library uses, as with a container's own libfabric.
void check_fabric(std::span<const Placement> ranks, Problems& found) {
  const auto other =
      std::ranges::find_if(ranks, [&](const auto& of) { return of.host != ranks.front().host; });
  for (std::size_t r = 0; other != ranks.end() && r < ranks.size(); ++r) {
    const bool uses = std::ranges::any_of(
        ranks[r].libraries, [](const VersionFact& library) { return library.name == kProvider; });
    if (!ranks[r].fabric.empty() && !uses) {
      const auto fabric = std::ranges::find(ranks[r].libraries, "libfabric", &VersionFact::name);
      found.push_back(fmt::format(
          "{} has {}, but rank {} loaded no provider that uses it{}: messages between nodes go "
          "over TCP. Load the site's MPI and NCCL plug-in; in a container, bind the host's "
          "libfabric and its provider (libcxi, libibverbs, libefa) over the container's",
          ranks[r].host, ranks[r].fabric.front(), r,
          fabric == ranks[r].libraries.end() ? "" : " (libfabric: " + fabric->version + ")"));
      return;  // the others say the same
    }
  }
}

}  // namespace

std::string ranks_text(const std::vector<std::size_t>& ranks) {
  constexpr std::size_t kMostNamed = 16;
  if (ranks.size() == 1) {
    return fmt::format("rank {}", ranks.front());
  }
  if (ranks.size() > kMostNamed) {
    return fmt::format("ranks {} and {} others",
                       fmt::join(ranks.begin(), ranks.begin() + kMostNamed, ", "),
                       ranks.size() - kMostNamed);
  }
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "),
                     ranks.back());
}

Placement find_placement(std::int64_t ranks, std::int64_t threads, const SystemFiles& files) {
  const BoundCores cores = bound_cores();
  Placement placement{.host = host_name(),
                      .cores = cores.text,
                      .core_count = cores.count,
                      .node_cores = cores.all,
                      .job_cores = cores.all,
                      .threads = threads,
                      .cpu_quota = cpu_quota().value_or(0.0),
                      .gpus_per_task = environment("SLURM_GPUS_PER_TASK")};
  if (std::int64_t given = 0; parse_int64(environment("SLURM_CPUS_ON_NODE"), given)) {
    placement.job_cores = std::min(placement.job_cores, given);
  }
  // Ranks with cores of their own do not meet others there.
  if (std::ssize(core_numbers(cores.processors)) >= sysconf(_SC_NPROCESSORS_ONLN)) {
    placement.others = running_beside(ranks, files.proc);
  }
  for (const char* const kind : {"infiniband", "cxi"}) {
    for (std::string& name : names_in(files.sys / "class" / kind)) {
      placement.fabric.push_back(std::move(name));
    }
  }
  return placement;
}

void place_gpu(Placement& placement, const device::GpuInfo& gpu, std::int64_t seen,
               const SystemFiles& files) {
  placement.gpus_seen = seen;
  placement.gpu_bus_id = gpu.bus_id;
  placement.gpu_uuid = gpu.uuid;
  std::string bus_id = gpu.bus_id;
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(files.sys / "bus" / "pci" / "devices" / bus_id / "local_cpulist");
  std::string list;
  std::getline(file, list);
  const std::set<std::int64_t> near = core_numbers(list);
  const std::set<std::int64_t> own = core_numbers(bound_cores().processors);
  if (!near.empty() && !own.empty() &&
      std::ranges::none_of(own, [&](std::int64_t cpu) { return near.contains(cpu); })) {
    placement.gpu_far_from = list;
  }
}

std::vector<Placement> gathered(comm::Communicator& world, const Placement& mine) {
  std::vector<Placement> all;
  all.reserve(static_cast<std::size_t>(world.size()));
  for (const std::string& text : world.all_gather_texts(
           nlohmann::json(mine).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    all.push_back(nlohmann::json::parse(text).get<Placement>());
  }
  return all;
}

std::vector<std::string> differing_facts(std::span<const std::string> hosts,
                                         std::span<const std::vector<VersionFact>> facts) {
  std::vector<std::string> found;
  std::set<std::string> reported;
  for (std::size_t r = 1; r < facts.size(); ++r) {
    for (const VersionFact& mine : facts[r]) {
      const auto other = std::ranges::find(facts.front(), mine.name, &VersionFact::name);
      const std::string theirs = other == facts.front().end() ? "none" : other->version;
      if (theirs != mine.version && reported.insert(mine.name + mine.version).second) {
        found.push_back(fmt::format(
            "rank {} on {} has {} {} and rank 0 on {} {}: start all ranks with the same executable "
            "and libraries",
            r, hosts[r], mine.name, mine.version, hosts.front(), theirs));
      }
    }
  }
  return found;
}

std::vector<std::string> placement_problems(std::span<const Placement> ranks,
                                            Oversubscription oversubscription) {
  Problems found;
  // Each kind twice at most: ranks and nodes of a launch are alike.
  const auto add = [&](const Problems& kind) {
    constexpr std::size_t kMost = 2;
    if (kind.size() > kMost) {
      found.push_back(fmt::format("{} ({} more like this)", kind.front(), kind.size() - 1));
    } else {
      found.insert(found.end(), kind.begin(), kind.end());
    }
  };
  const auto check = [&](const auto& of) {
    Problems kind;
    of(ranks, kind);
    add(kind);
  };
  check(check_distance);
  check(check_peers);
  check([&](const auto& all, Problems& kind) { check_threads(all, oversubscription, kind); });
  check(check_idle_cores);
  check(check_quotas);
  check(check_others);
  check(check_fabric);
  std::vector<std::string> hosts;
  std::vector<std::vector<VersionFact>> libraries;
  hosts.reserve(ranks.size());
  libraries.reserve(ranks.size());
  for (const Placement& of : ranks) {
    hosts.push_back(of.host);
    libraries.push_back(of.libraries);
    // A rank that is alone on its node does without some.
    std::erase_if(libraries.back(), [](const auto& library) { return library.name == kTransport; });
  }
  add(differing_facts(hosts, libraries));
  return found;
}

}  // namespace strata::app
