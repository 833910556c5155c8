#pragma once

#include <memory>
#include <string>

#include "strata/comm/progress_engine.hpp"
#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"

namespace strata::comm {

/// Why NCCL cannot be used: the build is without it, or the node has no library of a version that
/// fits; empty where it can. Needs no GPU.
[[nodiscard]] std::string nccl_absence();

/// Asks CUDA for as many hardware queues as it has (CUDA_DEVICE_MAX_CONNECTIONS=32 in the
/// environment, unless it is set): in too few, a message that waits for its peer holds up others
/// behind it. Call it before anything asks for a GPU; later it has no effect.
void request_hardware_queues();

/// The communicator of the same ranks that carries payloads in device memory through NCCL, each
/// group's in a stream of its own, and those in host memory through `host`. Messages between two
/// ranks in device memory need a route (open_routes); exchanges and collectives need none.
/// Summing is NCCL's: all_reduce by its all-reduce, reduce_scatter by its own where the slices are
/// of equal length and else by one reduction a slice, all in one group.
///
/// Waits of requests put the dependency on `compute` and return; NCCL's failures come out in
/// drain(), progress(), barrier() and the next operation. They end all of NCCL's communicators of
/// the process, and with them what runs on the GPU for them.
///
/// Destroying it ends what is under way; after a barrier() of the world nothing is. Subgroups must
/// be destroyed before the communicator that the first of them came from; that one, `compute` and
/// the device outlive all.
/// Pre: request_hardware_queues(); `compute` is a stream of `device`, a GPU.
/// Communication: collective over `host`.
/// Throws: AgreedError(kPeer) where a rank has no NCCL, or ranks share a GPU, or no way between
/// GPUs is found within timeout; AgreedError(kUsage) where the environment forbids enough hardware
/// queues.
[[nodiscard]] DeviceWorld nccl(std::unique_ptr<Communicator> host, ProgressEngine& host_engine,
                               const device::Device& device, device::Stream& compute);

}  // namespace strata::comm
