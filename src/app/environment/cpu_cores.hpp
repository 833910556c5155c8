#pragma once

#include <cstdint>
#include <string>

namespace strata::app {

/// Threads for each rank where the config leaves it open: the node's cores shared evenly among the
/// ranks on it, but no more than the launcher bound this process to, and at least 1.
[[nodiscard]] int default_threads(std::int64_t ranks_on_node);

/// The cores that this process may use.
struct BoundCores {
  std::string text;  ///< their numbers on the node, as in "0-3"; empty where nobody knows
  std::int64_t count = 0;
};
[[nodiscard]] BoundCores bound_cores();

}  // namespace strata::app
