#pragma once

#include <string>

#include "strata/comm/communicator.hpp"
#include "strata/ops/context.hpp"

namespace strata::train {

/// The log's line on the kernels of all ranks, where each operation and shape has the same on all
/// that run it. Communication: an all-gather over the world.
/// Throws: AgreedError(kPeer) that names two ranks that differ and the operation.
[[nodiscard]] std::string compared_kernels(comm::Communicator& world, const ops::KernelsUsed& mine);

}  // namespace strata::train
