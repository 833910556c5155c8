#include "environment/cpu_cores.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <hwloc.h>

#include "strata/core/cgroup.hpp"
#include "strata/core/text.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// Numbers of the node's cores and of those that this process may use; 0 where hwloc fails.
class Cores {
 public:
  Cores() {
    if (hwloc_topology_init(&topology_) != 0) {
      topology_ = nullptr;
      return;
    }
    if (hwloc_topology_load(topology_) != 0) {
      return;
    }
    hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(topology_);
    all_ = count_in(allowed);
    if (hwloc_get_cpubind(topology_, bound_, HWLOC_CPUBIND_PROCESS) == 0) {
      hwloc_bitmap_and(bound_, bound_, allowed);
    } else {
      hwloc_bitmap_copy(bound_, allowed);
    }
    own_ = count_in(bound_);
  }
  ~Cores() {
    hwloc_bitmap_free(bound_);
    if (topology_ != nullptr) {
      hwloc_topology_destroy(topology_);
    }
  }
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;

  [[nodiscard]] std::int64_t all() const { return all_; }
  [[nodiscard]] std::int64_t own() const { return own_; }

  [[nodiscard]] std::string own_text() const {
    std::set<std::int64_t> numbers;
    for_each_in(bound_, [&](hwloc_obj_t core) { numbers.insert(core->logical_index); });
    return core_list(numbers);
  }
  [[nodiscard]] std::string processors() const {
    char* text = nullptr;
    std::string result;
    if (hwloc_bitmap_list_asprintf(&text, bound_) >= 0) {
      result = text;
      std::free(text);
    }
    return result;
  }

 private:
  /// Passes each core with at least one processing unit in the set; each such unit where the
  /// topology has no cores.
  template <typename Take>
  void for_each_in(hwloc_const_cpuset_t set, Take take) const {
    if (topology_ == nullptr) {
      return;
    }
    const int depth = hwloc_get_type_or_below_depth(topology_, HWLOC_OBJ_CORE);
    for (unsigned i = 0; i < hwloc_get_nbobjs_by_depth(topology_, depth); ++i) {
      const hwloc_obj_t core = hwloc_get_obj_by_depth(topology_, depth, i);
      if (hwloc_bitmap_intersects(core->cpuset, set) != 0) {
        take(core);
      }
    }
  }
  [[nodiscard]] std::int64_t count_in(hwloc_const_cpuset_t set) const {
    std::int64_t count = 0;
    for_each_in(set, [&](hwloc_obj_t) { ++count; });
    return count;
  }

  hwloc_topology_t topology_ = nullptr;
  hwloc_bitmap_t bound_ = hwloc_bitmap_alloc();
  std::int64_t all_ = 0;
  std::int64_t own_ = 0;
};

/// The quota of one group, in CPUs; nothing where it has none. Source: the kernel's
/// admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
std::optional<double> quota_of(const fs::path& group) {
  double quota = 0.0;
  double period = 0.0;
  std::ifstream both(group / "cpu.max");  // "50000 100000" or "max 100000"
  const bool read = both ? static_cast<bool>(both >> quota >> period)
                         : std::ifstream(group / "cpu.cfs_quota_us") >> quota &&
                               std::ifstream(group / "cpu.cfs_period_us") >> period;
  return read && quota > 0.0 && period > 0.0 ? std::optional(quota / period) : std::nullopt;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& membership, const fs::path& root) {
  std::optional<double> least;
  for (const fs::path& group : cgroups_of("cpu", membership, root)) {
    if (const auto quota = quota_of(group)) {
      least = std::min(least.value_or(*quota), *quota);
    }
  }
  return least;
}

int default_threads(std::int64_t ranks_on_node, std::optional<double> quota) {
  const Cores cores;
  const std::int64_t ranks = std::max<std::int64_t>(1, ranks_on_node);
  std::int64_t threads = std::min(cores.own(), cores.all() / ranks);
  if (quota) {
    threads = std::min(threads, static_cast<std::int64_t>(*quota / static_cast<double>(ranks)));
  }
  return static_cast<int>(std::max<std::int64_t>(1, threads));
}

BoundCores bound_cores() {
  const Cores cores;
  return {.text = cores.own_text(),
          .count = cores.own(),
          .all = cores.all(),
          .processors = cores.processors()};
}

std::set<std::int64_t> core_numbers(const std::string& list) {
  std::set<std::int64_t> numbers;
  for (const std::string& part : split_words(list, ",\n ")) {
    std::int64_t first = 0;
    std::int64_t last = 0;
    const std::size_t dash = part.find('-');
    if (parse_int64(part.substr(0, dash), first) &&
        parse_int64(part.substr(dash == std::string::npos ? 0 : dash + 1), last)) {
      for (std::int64_t number = first; number <= last; ++number) {
        numbers.insert(numbers.end(), number);
      }
    }
  }
  return numbers;
}

std::string core_list(const std::set<std::int64_t>& numbers) {
  std::string list;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const std::int64_t first = *at;
    std::int64_t last = first;
    for (++at; at != numbers.end() && *at == last + 1; ++at) {
      ++last;
    }
    list += fmt::format("{}{}{}", list.empty() ? "" : ",", first,
                        last == first ? "" : fmt::format("-{}", last));
  }
  return list;
}

}  // namespace strata::app
