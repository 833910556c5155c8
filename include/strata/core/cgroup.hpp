#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace strata {

/// Directories of the cgroups that a process belongs to, and of those above them, where these have
/// a controller, as "cpu"; of version 1 and 2. A directory may be absent: in a container the path
/// may be the host's.
[[nodiscard]] std::vector<std::filesystem::path> cgroups_of(std::string_view controller,
                                                            const std::filesystem::path& membership,
                                                            const std::filesystem::path& root);

/// The host's memory that this process and others of its cgroups may use, and what of it is free or
/// can be reclaimed, in bytes; 0 where it is not known.
struct HostMemory {
  std::int64_t all = 0;
  std::int64_t available = 0;
};
[[nodiscard]] HostMemory host_memory(const std::filesystem::path& membership = "/proc/self/cgroup",
                                     const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace strata
