#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strata/comm/progress_engine.hpp"
#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"

namespace strata::comm {

/// Why NCCL is not available: the build excludes it, or this node has no library of a sufficient
/// version; empty where it is available. Needs no GPU.
[[nodiscard]] std::string nccl_absence();

/// The limit of thread blocks of the NCCL kernels of all routes of a rank together.
inline constexpr std::int64_t kAllRoutesBlocks = 16;
/// The fewest multiprocessors of a GPU on which NCCL's kernels that wait for peers leave one for
/// others: beside the routes, a rank has three groups.
inline constexpr std::int64_t kLeastMultiprocessors = kAllRoutesBlocks + 3 + 1;

/// The limit of thread blocks of NCCL's kernels per group on GPUs of these many multiprocessors.
/// All of a rank's kernels are then resident together, so none that waits for a peer keeps another
/// from starting. At most 16, as from 65 multiprocessors on. Pre: at least kLeastMultiprocessors.
[[nodiscard]] std::int64_t group_blocks(std::int64_t multiprocessors);

/// Requests the maximum number of hardware queues (sets CUDA_DEVICE_MAX_CONNECTIONS=32 unless it is
/// set). With too few queues, a message that waits for its peer blocks others behind it. Must be
/// called before CUDA is initialized; later it has no effect.
void request_hardware_queues();

/// Has CUDA load all kernels of a module at its start (sets CUDA_MODULE_LOADING=EAGER unless it is
/// set). By default a kernel is loaded at its first launch, which waits for the whole GPU, and so
/// for kernels that wait for a peer. Must be called before CUDA is initialized.
void request_eager_loading();

/// The ranks of `host` with NCCL for payloads in device memory, each group on its own stream, and
/// `host` for payloads in host memory. Point-to-point messages in device memory need a route
/// (open_routes); exchanges and collectives do not. NCCL sums: all_reduce is ncclAllReduce;
/// reduce_scatter is ncclReduceScatter for slices of equal length, else one ncclReduce per slice in
/// one group call. With Summation::kInvariant strata adds: NCCL_NVLS_ENABLE=0, unless it is set,
/// leaves out the buffers of sums inside NVSwitches.
///
/// A group takes memory of the GPU once it is connected: at connect(), or at its first collective
/// or exchange in device memory, which then blocks the host and which all its ranks must call.
///
/// Waiting for a request makes `compute` wait and returns. drain(), progress(), barrier() and the
/// next operation report a failure of NCCL, which aborts all NCCL communicators of the process with
/// their work on the GPU.
///
/// Destroying a group aborts its pending operations; after a barrier() of the world there are none.
/// Pre: request_hardware_queues(); GPUs of at least kLeastMultiprocessors; `compute` is a stream of
/// `device`, a GPU; `compute`, `device` and `host_engine` outlive the result. Communication:
/// collective over `host`. Throws: AgreedError(kPeer) where a rank has no NCCL; AgreedError(kUsage)
/// where the environment allows too few hardware queues. Connecting throws AgreedError(kPeer) where
/// ranks share a GPU or no GPU connects, and Error(kPeer) on a rank that does not, while others
/// wait for it.
[[nodiscard]] DeviceWorld nccl(std::unique_ptr<Communicator> host, ProgressEngine& host_engine,
                               const device::Device& device, device::Stream& compute,
                               Summation sums);

}  // namespace strata::comm
