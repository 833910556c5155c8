#pragma once

#include <memory>

#include "strata/comm/progress_engine.hpp"
#include "strata/device/stream.hpp"

namespace strata::comm {

/// A group whose messages may also hold tensors in a GPU's memory, for a `host` kind that carries
/// host memory alone: they go through pinned host memory. Host tensors go straight to `host`.
///
/// Tensors of the GPU are read and written in the order of `stream`, the one that computes: a send
/// waits for the work that is on it, as does a sum; what was received is there for work that comes
/// after. Messages' pinned memory is kept for later ones, at most as much as was in flight at a
/// time.
/// Pre: `stream` outlives the group.
[[nodiscard]] DeviceWorld staged(std::unique_ptr<Communicator> host, ProgressEngine& host_engine,
                                 device::Stream& stream);

}  // namespace strata::comm
