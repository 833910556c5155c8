#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
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
  std::int64_t all = 0;    ///< of the node, as far as its cgroup allows them
  std::string processors;  ///< the system's numbers of their hardware threads
};
[[nodiscard]] BoundCores bound_cores();

/// The numbers of a list such as "0-3,8", and the list of numbers; other texts have none.
[[nodiscard]] std::set<std::int64_t> core_numbers(const std::string& list);
[[nodiscard]] std::string core_list(const std::set<std::int64_t>& numbers);

}  // namespace strata::app
