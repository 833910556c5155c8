#pragma once

#include <cstdint>

namespace strata::app {

/// Threads for each rank where the config leaves it open: the cores that this process is bound to,
/// where its launcher bound it to fewer than the node has; else the node's cores shared evenly
/// among the ranks on it; at least 1.
[[nodiscard]] int default_threads(std::int64_t ranks_on_node);

}  // namespace strata::app
