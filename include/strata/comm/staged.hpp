#pragma once

#include <memory>

#include "strata/comm/progress_engine.hpp"
#include "strata/device/stream.hpp"

namespace strata::comm {

/// Extends a transport for host memory to GPU tensors, which it stages through pinned host memory.
/// Host tensors go straight to `host`.
///
/// GPU tensors are read and written in the order of the compute stream: sends and sums wait on the
/// host for the work already on `stream`, and a received tensor is ready for work enqueued after
/// the wait. Each group keeps its staging buffers for reuse, as many as were in flight at once.
/// Pre: `stream` and `host_engine` outlive the result.
[[nodiscard]] DeviceWorld staged(std::unique_ptr<Communicator> host, ProgressEngine& host_engine,
                                 device::Stream& stream);

}  // namespace strata::comm
