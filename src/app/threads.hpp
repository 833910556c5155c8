#pragma once

#include <cstdint>

namespace strata::app {

/// Threads for each rank where the config leaves it open: the node's cores shared evenly among the
/// ranks on it, but no more than the launcher bound this process to, and at least 1.
[[nodiscard]] int default_threads(std::int64_t ranks_on_node);

}  // namespace strata::app
