#pragma once

#include <memory>
#include <utility>

#include <cuda_runtime_api.h>

namespace standin {

/// Puts work() on the stream for a library: once, or where the stream is recorded as often as
/// the graph is launched.
template <typename Work>
bool put_library_work(cudaStream_t stream, Work work) {
  struct Kept {
    Work work;
    bool is_recorded;

    static void run(void* given) {
      const auto* const kept = static_cast<const Kept*>(given);
      kept->work();
      // What is recorded stays until the program ends: nothing tells when its graph goes.
      if (!kept->is_recorded) {
        delete kept;
      }
    }
  };
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    return false;
  }
  auto kept =
      std::make_unique<Kept>(Kept{std::move(work), status == cudaStreamCaptureStatusActive});
  if (cudaLaunchHostFunc(stream, Kept::run, kept.get()) != cudaSuccess) {
    return false;
  }
  static_cast<void>(kept.release());
  return true;
}

}  // namespace standin
