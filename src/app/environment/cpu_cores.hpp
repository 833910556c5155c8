#pragma once

#include <cstdint>
#include <string>

namespace strata::app {

/// Default number of threads per rank: the node's cores divided by its ranks, at most the cores
/// that this process is bound to, at least 1.
[[nodiscard]] int default_threads(std::int64_t ranks_on_node);

/// The cores that this process may use.
struct BoundCores {
  std::string text;  ///< their logical indices, as in "0-3"; empty where unknown
  std::int64_t count = 0;
};
[[nodiscard]] BoundCores bound_cores();

}  // namespace strata::app
