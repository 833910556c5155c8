#pragma once

#include <cstdint>
#include <string>

namespace strata::app {

/// The default number of threads per rank: an equal share of the node's cores, at most the number
/// of cores that the launcher bound this process to, at least 1.
[[nodiscard]] int default_threads(std::int64_t ranks_on_node);

/// The cores that this process may use.
struct BoundCores {
  std::string text;  ///< their indices on the node, as in "0-3"; empty where not known
  std::int64_t count = 0;
};
[[nodiscard]] BoundCores bound_cores();

}  // namespace strata::app
