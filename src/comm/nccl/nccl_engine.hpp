#pragma once

#ifdef STRATA_HAVE_NCCL

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/progress_engine.hpp"
#include "strata/device/device.hpp"
#include "strata/device/stopwatch.hpp"
#include "strata/device/stream.hpp"

#include "nccl/nccl_library.hpp"

namespace strata::comm {

class NcclChannel;

/// The address of a communicator's handle. It is stable. The handle is null once the communicator
/// is aborted.
using NcclHandle = ncclComm_t*;

/// What the compute stream waits for: the ranks of a group along this axis, or a neighbouring
/// stage.
using Awaited = std::optional<grid::Axis>;
inline constexpr Awaited kNeighbourStage = std::nullopt;

/// The library, the GPU, the compute stream and the list of channels that all NCCL communicators of
/// a process share. The communicators are blocking: a call returns once its work is enqueued. Only
/// calls that connect ranks wait for them, which the watchdog ends; the engine waits for the work
/// itself, with a timeout.
class NcclEngine final : public ProgressEngine {
 public:
  /// Collects the results of NCCL's calls within a group.
  using Note = std::function<void(ncclResult_t)>;

  /// `activity`: of this rank, or null. Throws: Error(kPeer) where NCCL is missing.
  NcclEngine(ProgressEngine& host, const device::Device& device, device::Stream& compute,
             Timeout timeout, Activity* activity);

  void progress() override;
  void drain() override { drain_within(timeout_); }
  void wait_for_compute() override { keep_ahead(0); }
  void throttle() override { keep_ahead(2); }
  [[nodiscard]] DeviceWaits take_device_waits() override { return std::exchange(waited_, {}); }

  [[nodiscard]] const NcclLibrary& functions() const { return library_; }
  [[nodiscard]] const device::Device& device() const { return device_; }
  [[nodiscard]] device::Stream& compute() { return compute_; }

  /// The limit of thread blocks of a group's kernels, which all ranks have agreed on.
  [[nodiscard]] int group_blocks() const { return group_blocks_; }
  void set_group_blocks(int blocks) { group_blocks_ = blocks; }

  [[nodiscard]] ncclUniqueId unique_id();
  /// The communicator of `size` ranks that call with the same id; `what` names the call in errors.
  /// `blocks`: the limit of thread blocks of NCCL's kernels. Communication: collective over them.
  [[nodiscard]] NcclHandle join(const ncclUniqueId& id, std::int64_t rank, std::int64_t size,
                                int blocks, const std::string& what);

  /// Makes several calls in one NCCL group; `what` names them in errors.
  void group(ncclComm_t handle, const std::string& what,
             const std::function<void(const Note& note)>& calls);

  /// An event at the current end of the compute stream, for one stream to wait for.
  [[nodiscard]] device::Event mark_compute();

  /// Makes the compute stream wait for `done`, and measures how long it stalls.
  void wait(device::Event& done, Awaited awaited);
  /// drain() with another timeout: blocks the host until the compute stream and every channel are
  /// idle.
  void drain_within(Timeout timeout);

  void add(NcclChannel& channel) { channels_.push_back(&channel); }
  void remove(const NcclChannel& channel);
  /// Aborts a communicator and its pending operations, without the other ranks.
  void abort(NcclHandle handle) noexcept;

 private:
  struct Wait {
    device::Stopwatch time;
    Awaited awaited;
  };

  void use_device() const;
  /// Waits until at most `most` of the marks, of which it sets another, are ahead of the GPU.
  void keep_ahead(std::size_t most);
  /// Throws: Error(kPeer) where a communicator has failed.
  void look_for_failures();
  /// Adds up the measured stalls. Pre: the compute stream is idle.
  void count_waits();
  [[nodiscard]] ncclResult_t state_of(ncclComm_t handle) const;
  /// Aborts all communicators, then throws.
  [[noreturn]] void fail_with(ncclComm_t handle, ncclResult_t result, const std::string& what);
  [[noreturn]] void time_out(const std::string& what, Timeout timeout);
  void abort_all() noexcept;

  ProgressEngine& host_;
  Timeout timeout_;
  Activity* activity_;
  NcclLibrary library_;
  device::Device device_;
  device::Stream& compute_;
  int group_blocks_ = 1;
  std::vector<NcclChannel*> channels_;
  std::deque<ncclComm_t> handles_;
  /// Events of throttle() that the host has not waited for.
  std::deque<device::Event> marks_;
  /// Since the last drain().
  std::vector<Wait> waits_;
  std::vector<device::Stopwatch> idle_;
  DeviceWaits waited_;
};

/// One NCCL communicator and the stream that its operations run on, in the order of their calls.
/// The stream's work starts before that of the compute stream: others wait for it.
class NcclChannel {
 public:
  /// Takes ownership of `handle`.
  NcclChannel(NcclEngine& engine, NcclHandle handle);
  /// Aborts pending operations.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  /// Null after a failure.
  [[nodiscard]] ncclComm_t handle() const { return *handle_; }
  /// The operation issued last, as in "receive from rank 1 of the pipeline group (this rank is 0
  /// there): activation".
  [[nodiscard]] const std::string& latest() const { return latest_; }
  [[nodiscard]] bool idle();

  /// Enqueues operations on the stream as one NCCL group, after the event `ready`.
  /// Returns: the event of their completion, for one stream to wait for.
  template <typename Calls>
  [[nodiscard]] device::Event issue(device::Event& ready, std::string what, const Calls& calls) {
    require_open();
    ready.wait(stream_);
    latest_ = std::move(what);
    return enqueue([&](device::Stream& stream) {
      engine_.group(*handle_, latest_, [&](const NcclEngine::Note& note) {
        calls(note, *handle_, static_cast<cudaStream_t>(stream.raw()));
      });
    });
  }

  /// Has `work` enqueue on the stream. Returns: as issue().
  [[nodiscard]] device::Event enqueue(const std::function<void(device::Stream&)>& work) {
    work(stream_);
    device::Event done(engine_.device(), 1);
    done.record(stream_);
    return done;
  }

 private:
  void require_open() const;

  NcclEngine& engine_;
  NcclHandle handle_;
  device::Stream stream_;
  std::string latest_;
};

}  // namespace strata::comm

#endif
