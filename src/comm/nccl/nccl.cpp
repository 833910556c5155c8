#include "strata/comm/nccl.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/gpu_info.hpp"

#include "nccl/nccl_communicator.hpp"

namespace strata::comm {
namespace {

constexpr const char* kQueues = "CUDA_DEVICE_MAX_CONNECTIONS";

}  // namespace

std::int64_t group_blocks(std::int64_t multiprocessors) {
  require(multiprocessors >= kLeastMultiprocessors, "NCCL on {} multiprocessors", multiprocessors);
  // Of the data, the lane and the tensor group messages may wait at once.
  constexpr std::int64_t kGroups = 3;
  constexpr std::int64_t kMost = 16;
  return std::min(kMost, (multiprocessors - kAllRoutesBlocks - 1) / kGroups);
}

void request_hardware_queues() {
  // The maximum that CUDA supports.
  ::setenv(kQueues, "32", 0);
}

void request_eager_loading() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace strata::comm

#ifndef STRATA_HAVE_NCCL

namespace strata::comm {

std::string nccl_absence() {
  return "this executable was built without NCCL; build it where nvcc and nccl.h are found";
}

DeviceWorld nccl(std::unique_ptr<Communicator> /*host*/, ProgressEngine& /*host_engine*/,
                 const device::Device& /*device*/, device::Stream& /*compute*/,
                 Summation /*sums*/) {
  throw AgreedError(ExitCode::kPeer, "run.transport is nccl, but " + nccl_absence() +
                                         ", or set run.transport = mpi");
}

}  // namespace strata::comm

#else

namespace strata::comm {
namespace {

/// Hardware queues for the streams that wait for peers (four routes for each of a stage's chunks,
/// a tied table's two, the data, lane and tensor groups), for computing and copying, and for NCCL's
/// own streams.
constexpr std::int64_t kLeastQueues = 30;

void require_queues() {
  const char* text = std::getenv(kQueues);
  std::int64_t queues = 0;
  require(text != nullptr, "request_hardware_queues() was not called");
  if (!parse_int64(text, queues) || queues < kLeastQueues) {
    fail(
        ExitCode::kUsage,
        "{} is \"{}\" in the environment, but NCCL's messages need {} to 32 hardware queues; unset "
        "it, or set run.transport = mpi",
        kQueues, text, kLeastQueues);
  }
}

}  // namespace

/// Of the GPU that has the fewest; NCCL's kernels have equal blocks on all ranks.
std::int64_t fewest_multiprocessors(Communicator& host, const device::Device& device) {
  const std::vector<std::int64_t> mine{
      device::gpus().at(static_cast<std::size_t>(device.index())).multiprocessors};
  std::vector<std::int64_t> all(static_cast<std::size_t>(host.size()));
  host.all_gather(payload_of(std::span(mine)), payload_of(std::span(all)));
  return *std::ranges::min_element(all);
}

std::string nccl_absence() {
  try {
    const NcclLibrary library;
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

DeviceWorld nccl(std::unique_ptr<Communicator> host, ProgressEngine& host_engine,
                 const device::Device& device, device::Stream& compute, Summation sums) {
  if (sums == Summation::kInvariant) {
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  }
  std::unique_ptr<NcclEngine> engine;
  agree(*host, [&] {
    require_queues();
    engine = std::make_unique<NcclEngine>(host_engine, device, compute, host->timeout(),
                                          host->activity());
  });
  engine->set_group_blocks(static_cast<int>(group_blocks(fewest_multiprocessors(*host, device))));
  auto ranks = std::make_unique<NcclCommunicator>(std::move(host), *engine);
  return {.engine = std::move(engine), .ranks = std::move(ranks)};
}

}  // namespace strata::comm

#endif
