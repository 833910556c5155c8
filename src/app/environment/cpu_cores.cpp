#include "environment/cpu_cores.hpp"

#include <algorithm>
#include <cstdlib>

#include <hwloc.h>

namespace strata::app {
namespace {

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
    hwloc_bitmap_t numbers = hwloc_bitmap_alloc();
    for (unsigned i = 0; i < static_cast<unsigned>(own_); ++i) {
      hwloc_bitmap_set(
          numbers,
          hwloc_get_obj_inside_cpuset_by_type(topology_, bound_, HWLOC_OBJ_CORE, i)->logical_index);
    }
    char* text = nullptr;
    std::string result;
    if (hwloc_bitmap_list_asprintf(&text, numbers) >= 0) {
      result = text;
      std::free(text);
    }
    hwloc_bitmap_free(numbers);
    return result;
  }

 private:
  /// Cores with at least one processing unit in the set.
  [[nodiscard]] std::int64_t count_in(hwloc_const_cpuset_t set) const {
    return hwloc_get_nbobjs_inside_cpuset_by_type(topology_, set, HWLOC_OBJ_CORE);
  }

  hwloc_topology_t topology_ = nullptr;
  hwloc_bitmap_t bound_ = hwloc_bitmap_alloc();
  std::int64_t all_ = 0;
  std::int64_t own_ = 0;
};

}  // namespace

int default_threads(std::int64_t ranks_on_node) {
  const Cores cores;
  const std::int64_t threads =
      std::min(cores.own(), cores.all() / std::max<std::int64_t>(1, ranks_on_node));
  return static_cast<int>(std::max<std::int64_t>(1, threads));
}

BoundCores bound_cores() {
  const Cores cores;
  return {.text = cores.own_text(), .count = cores.own()};
}

}  // namespace strata::app
