#include "nccl/nccl_engine.hpp"

#ifdef STRATA_HAVE_NCCL

#include <algorithm>
#include <chrono>
#include <thread>

#include <cuda_runtime.h>

#include "strata/core/error.hpp"
#include "strata/core/narrow.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/failure.hpp"

namespace strata::comm {
namespace {

/// Detects that a timeout has expired; yields the core between checks.
class Waiting {
 public:
  explicit Waiting(Timeout timeout) : timeout_(timeout) {}

  [[nodiscard]] bool timed_out() {
    // Most calls complete immediately.
    constexpr int kSpins = 64;
    if (++checks_ <= kSpins) {
      return false;
    }
    std::this_thread::yield();
    return std::chrono::duration<double>(Clock::now() - start_).count() > timeout_.seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Timeout timeout_;
  Clock::time_point start_ = Clock::now();
  std::int64_t checks_ = 0;
};

}  // namespace

NcclEngine::NcclEngine(ProgressEngine& host, const device::Device& device, device::Stream& compute,
                       Timeout timeout, Activity* activity)
    : host_(host), timeout_(timeout), activity_(activity), device_(device), compute_(compute) {
  device::limit_release_waits(timeout.seconds);
}

void NcclEngine::progress() {
  host_.progress();
  look_for_failures();
}

void NcclEngine::use_device() const {
  const cudaError_t status = cudaSetDevice(static_cast<int>(device_.index()));
  if (status != cudaSuccess) {
    device::cuda_failed("choosing the device", cudaGetErrorString(status));
  }
}

ncclUniqueId NcclEngine::unique_id() {
  ncclUniqueId id{};
  const ncclResult_t result = library_.get_unique_id(&id);
  if (result != ncclSuccess) {
    fail_with(nullptr, result, "create the id that connects the ranks");
  }
  return id;
}

NcclHandle NcclEngine::join(const ncclUniqueId& id, std::int64_t rank, std::int64_t size,
                            int blocks, const std::string& what) {
  use_device();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = blocks;
  ncclComm_t& handle = handles_.emplace_back(nullptr);
  const WaitMark call(activity_, WaitKind::kLibraryCall, what);
  const ncclResult_t result =
      library_.comm_init_rank_config(&handle, checked_int(size, "the ranks of a communicator"), id,
                                     static_cast<int>(rank), &config);
  if (result != ncclSuccess) {
    fail_with(handle, result, what);
  }
  return &handle;
}

void NcclEngine::group(ncclComm_t handle, const std::string& what,
                       const std::function<void(const Note& note)>& calls) {
  use_device();
  const WaitMark call(activity_, WaitKind::kLibraryCall, what);
  ncclResult_t worst = library_.group_start();
  calls([&](ncclResult_t result) { worst = worst == ncclSuccess ? result : worst; });
  const ncclResult_t end = library_.group_end();
  if (const ncclResult_t result = worst == ncclSuccess ? end : worst; result != ncclSuccess) {
    fail_with(handle, result, what);
  }
}

device::Event NcclEngine::mark_compute() {
  device::Event event(device_, 1);
  event.record(compute_);
  return event;
}

ncclResult_t NcclEngine::state_of(ncclComm_t handle) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = library_.comm_get_async_error(handle, &state);
  return asked == ncclSuccess ? state : asked;
}

void NcclEngine::look_for_failures() {
  for (const NcclChannel* channel : channels_) {
    const ncclResult_t state =
        channel->handle() == nullptr ? ncclSuccess : state_of(channel->handle());
    if (state != ncclSuccess) {
      fail_with(channel->handle(), state, channel->latest());
    }
  }
}

void NcclEngine::drain_within(Timeout timeout) {
  use_device();
  Waiting waiting(timeout);
  std::ptrdiff_t busy_before = std::ssize(channels_);
  for (;;) {
    const auto is_busy = [](NcclChannel* channel) { return !channel->idle(); };
    const auto busy = std::find_if(channels_.begin(), channels_.end(), is_busy);
    if (busy == channels_.end() && compute_.idle()) {
      count_waits();
      return;
    }
    // A channel that becomes idle proves that its peers are alive.
    const std::ptrdiff_t channels = std::count_if(busy, channels_.end(), is_busy);
    if (channels != busy_before) {
      waiting = Waiting(timeout);
      busy_before = channels;
    }
    look_for_failures();
    // Without pending messages the GPU only computes, which has no time limit.
    if (waiting.timed_out() && busy != channels_.end()) {
      time_out((*busy)->latest(), timeout);
    }
  }
}

void NcclEngine::wait(device::Event& done, Awaited awaited) {
  if (idle_.empty()) {
    idle_.emplace_back(device_);
  }
  Wait& wait = waits_.emplace_back(Wait{std::move(idle_.back()), awaited});
  idle_.pop_back();
  wait.time.start(compute_);
  done.wait(compute_);
  wait.time.stop(compute_);
}

void NcclEngine::count_waits() {
  for (Wait& wait : waits_) {
    (wait.awaited ? waited_.groups.of(*wait.awaited) : waited_.stage_seconds) +=
        wait.time.seconds();
    idle_.push_back(std::move(wait.time));
  }
  waits_.clear();
}

void NcclEngine::keep_ahead(std::size_t most) {
  marks_.push_back(mark_compute());
  for (; marks_.size() > most; marks_.pop_front()) {
    Waiting waiting(timeout_);
    while (!marks_.front().reached()) {
      look_for_failures();
      const auto busy = std::find_if(channels_.begin(), channels_.end(),
                                     [](NcclChannel* channel) { return !channel->idle(); });
      if (waiting.timed_out() && busy != channels_.end()) {
        time_out((*busy)->latest(), timeout_);
      }
    }
  }
}

void NcclEngine::remove(const NcclChannel& channel) {
  std::erase(channels_, &channel);
}

void NcclEngine::fail_with(ncclComm_t handle, ncclResult_t result, const std::string& what) {
  // Before the communicators and their error texts are gone.
  const std::string text = library_.get_error_string(result);
  const char* last = library_.get_last_error(handle);
  const std::string details = last == nullptr ? "" : last;
  abort_all();
  fail(ExitCode::kPeer,
       "NCCL failed to {}: {}{}{}. If no other rank reports a cause, set NCCL_DEBUG=WARN in the "
       "environment; run.transport = mpi avoids NCCL",
       what, text, details.empty() ? "" : "; ", details);
}

void NcclEngine::time_out(const std::string& what, Timeout timeout) {
  abort_all();
  throw TimeoutError(
      ExitCode::kPeer,
      fmt::format(
          "timed out after {:.0f} s waiting to {}; that rank, its GPU or its node hangs or "
          "is gone. Submit the job again with --run.resume=auto; run.timeout sets the limit",
          timeout.seconds, what));
}

void NcclEngine::abort(NcclHandle handle) noexcept {
  if (*handle != nullptr) {
    static_cast<void>(library_.comm_abort(*handle));
    *handle = nullptr;
  }
}

void NcclEngine::abort_all() noexcept {
  // In one group: an abort may wait for the GPU, where kernels of other communicators wait for
  // peers.
  static_cast<void>(library_.group_start());
  for (ncclComm_t& handle : handles_) {
    abort(&handle);
  }
  static_cast<void>(library_.group_end());
}

NcclChannel::NcclChannel(NcclEngine& engine, NcclHandle handle)
    : engine_(engine), handle_(handle), stream_(engine.device(), device::StreamPriority::kHigh) {
  engine_.add(*this);
}

NcclChannel::~NcclChannel() {
  engine_.remove(*this);
  engine_.abort(handle_);
}

bool NcclChannel::idle() {
  return stream_.idle();
}

void NcclChannel::require_open() const {
  if (*handle_ == nullptr) {
    fail(ExitCode::kPeer, "NCCL's communicators were closed after a failure");
  }
}

}  // namespace strata::comm

#endif
