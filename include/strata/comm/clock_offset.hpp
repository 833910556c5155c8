#pragma once

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// Seconds of this rank's clock ahead of rank 0's: the median over rounds, each read after a
/// barrier, so it is as exact as ranks leave a barrier together.
/// Communication: collective over the world.
[[nodiscard]] double clock_offset_seconds(Communicator& world, double (*now)());

}  // namespace strata::comm
