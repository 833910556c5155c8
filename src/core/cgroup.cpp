#include "strata/core/cgroup.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <tuple>

#include "strata/core/memory.hpp"
#include "strata/core/text.hpp"

namespace strata {
namespace {

namespace fs = std::filesystem;

/// The number in a file, or that after a key; nothing where there is none, as for "max".
std::optional<std::int64_t> number_in(const fs::path& file, std::string_view key = {}) {
  std::ifstream words(file);
  bool found = key.empty();
  for (std::string word; words >> word;) {
    std::int64_t number = 0;
    if (found) {
      return parse_int64(word, number) ? std::optional(number) : std::nullopt;
    }
    found = word == key;
  }
  return std::nullopt;
}

}  // namespace

std::vector<fs::path> cgroups_of(std::string_view controller, const fs::path& membership,
                                 const fs::path& root) {
  std::vector<fs::path> groups;
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // "4:cpu,cpuacct:/a/b", or "0::/a/b" of version 2.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::vector<std::string> names = split_words(controllers, ",");
    if (!names.empty() && std::ranges::find(names, controller) == names.end()) {
      continue;
    }
    const std::vector<fs::path> mounts = names.empty()
                                             ? std::vector{root, root / "unified"}
                                             : std::vector{root / controllers, root / controller};
    for (const fs::path& mount : mounts) {
      // In a container the path may be the host's, which does not exist here.
      fs::path group = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
      for (bool more = true; more; group = group.parent_path()) {
        more = !group.empty();
        groups.push_back(mount / group);
      }
    }
  }
  return groups;
}

/// Source: the kernel's admin-guide/cgroup-v2.rst (memory.max) and cgroup-v1/memory.rst.
HostMemory host_memory(const fs::path& membership, const fs::path& root) {
  HostMemory memory{.all = proc_bytes("/proc/meminfo", "MemTotal"),
                    .available = proc_bytes("/proc/meminfo", "MemAvailable")};
  for (const fs::path& group : cgroups_of("memory", membership, root)) {
    for (const auto& [limit, usage, prefix] :
         {std::tuple("memory.max", "memory.current", ""),
          std::tuple("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")}) {
      if (const auto most = number_in(group / limit)) {
        std::int64_t used = number_in(group / usage).value_or(0);
        for (const char* const files : {"inactive_file", "active_file"}) {  // as in MemAvailable
          used -= number_in(group / "memory.stat", std::string(prefix) + files).value_or(0);
        }
        memory.all = std::min(memory.all, *most);
        memory.available = std::min(
            memory.available, std::max<std::int64_t>(1, *most - std::max<std::int64_t>(0, used)));
      }
    }
  }
  return memory;
}

}  // namespace strata
