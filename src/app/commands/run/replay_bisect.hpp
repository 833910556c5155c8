#pragma once

#include "strata/comm/mpi.hpp"
#include "strata/config/command.hpp"
#include "strata/core/log.hpp"

namespace strata::app {

/// strata replay --bisect: finds where two runs of the same settings parted, and which of them
/// differs from a replay. Communication: collective over the world. Throws: AgreedError, also
/// AgreedError(kCheckpoint) with what was found where they parted.
ExitCode bisect(const config::CommandLine& line, comm::MpiSession& mpi,
                const config::FailureHandler& on_failure, Log& log);

}  // namespace strata::app
