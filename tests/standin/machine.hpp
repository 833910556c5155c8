#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "memory.hpp"
#include "streams.hpp"

namespace standin {

struct Event {
  int device = 0;
  unsigned flags = 0;
  Position position;
  /// Of one with times, when its place in the stream was reached.
  std::shared_ptr<std::uint64_t> reached_at;
};

/// The GPUs of this process and what waits on their streams. All is touched with `mutex` held.
struct Machine {
  Machine();

  /// The stream of a handle, null's of the thread's device among them; null where there is none.
  [[nodiscard]] std::shared_ptr<Stream> find(cudaStream_t handle) const;
  /// Does what stands before the positions.
  void finish(const std::vector<Position>& positions);
  void finish(const std::shared_ptr<Stream>& stream) { finish({{stream, stream->queued}}); }
  void finish_device(int device);
  /// Does the stream's next piece of work, if there is one; whether there was.
  bool make_progress(const Position& position);

  std::mutex mutex;
  int devices;
  std::size_t device_bytes;  ///< of each
  Memory memory;
  Worker worker;
  std::vector<std::shared_ptr<Stream>> default_streams;  ///< one a device
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::map<cudaEvent_t, Event> events;
  std::map<std::uintptr_t, std::shared_ptr<Recording>> graphs;  ///< and those made ready of them
  std::uintptr_t last_graph = 0;
  std::uintptr_t last_event = 0;
  std::map<const void*, std::size_t> shared_limits;  ///< of kernels for which more was asked
  std::set<std::pair<int, int>> peers;               ///< who may read whose memory
};

Machine& machine();

/// What the runtime keeps for each thread of the host.
struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  /// What it records at the moment; else null.
  std::shared_ptr<Recording> recording;
};
HostThread& host_thread();

/// Whether the thread records work. A call that waits, or takes or gives back memory, is refused
/// then, and spoils what is recorded.
inline bool spoils_recording() {
  const std::shared_ptr<Recording>& recording = host_thread().recording;
  if (recording != nullptr) {
    recording->is_broken = true;
  }
  return recording != nullptr;
}

/// Runs function(Machine&) with the mutex held, and remembers a failure for cudaGetLastError.
template <typename Function>
cudaError_t call(const Function& function) {
  Machine& all = machine();
  const std::lock_guard lock(all.mutex);
  const cudaError_t status = function(all);
  if (status != cudaSuccess && status != cudaErrorNotReady) {
    host_thread().last_error = status;
  }
  return status;
}

/// As call(), of a function that cannot be called while its thread records.
template <typename Function>
cudaError_t call_apart(const Function& function) {
  return call([&](Machine& machine) {
    return spoils_recording() ? cudaErrorStreamCaptureUnsupported : function(machine);
  });
}

}  // namespace standin
