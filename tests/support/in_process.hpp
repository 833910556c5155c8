#pragma once

#include <cstdint>
#include <functional>

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// Runs `ranks` ranks as threads of this process, each with a communicator over all of them, and
/// joins them. For tests: messages are copies through shared memory. When a rank throws, the waits
/// of the others end, and the first error is rethrown.
void run_in_process_ranks(std::int64_t ranks, const std::function<void(Communicator& world)>& body);

}  // namespace strata::comm
