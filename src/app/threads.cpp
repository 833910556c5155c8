#include "threads.hpp"

#include <algorithm>

#include <hwloc.h>

namespace strata::app {
namespace {

/// Cores with at least one processing unit in the set.
std::int64_t cores_in(hwloc_topology_t topology, hwloc_const_cpuset_t set) {
  return hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE);
}

}  // namespace

int default_threads(std::int64_t ranks_on_node) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    return 1;
  }
  std::int64_t threads = 1;
  if (hwloc_topology_load(topology) == 0) {
    const std::int64_t all = cores_in(topology, hwloc_topology_get_allowed_cpuset(topology));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    std::int64_t own = all;
    if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0) {
      hwloc_bitmap_and(bound, bound, hwloc_topology_get_allowed_cpuset(topology));
      own = cores_in(topology, bound);
    }
    hwloc_bitmap_free(bound);
    threads = std::min(own, all / std::max<std::int64_t>(1, ranks_on_node));
  }
  hwloc_topology_destroy(topology);
  return static_cast<int>(std::max<std::int64_t>(1, threads));
}

}  // namespace strata::app
