#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace strata::app {

/// The CPUs whose time this process and others of its cgroups may use, as in 1.5: the least quota
/// of its groups and those above them, of version 1 and 2; nothing where none has a quota.
[[nodiscard]] std::optional<double> cpu_quota(
    const std::filesystem::path& membership = "/proc/self/cgroup",
    const std::filesystem::path& root = "/sys/fs/cgroup");

/// Default number of threads per rank: the node's cores, or the quota if that is less, divided by
/// its ranks, at most the cores that this process is bound to, at least 1.
[[nodiscard]] int default_threads(std::int64_t ranks_on_node,
                                  std::optional<double> quota = cpu_quota());

/// The cores that this process may use.
struct BoundCores {
  std::string text;  ///< their logical indices, as in "0-3"; empty where unknown
  std::int64_t count = 0;
};
[[nodiscard]] BoundCores bound_cores();

}  // namespace strata::app
