#pragma once

#include <cstdint>
#include <functional>

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// Runs `ranks` ranks as threads of this process, each with a communicator over all of them, and
/// returns when all have ended. For tests: messages are copies through shared memory. Where ranks
/// throw, the others' waits end and the error of the rank that threw first is thrown.
void run_in_process_ranks(std::int64_t ranks, const std::function<void(Communicator& world)>& body);

}  // namespace strata::comm
