#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "strata/device/failure.hpp"

#include "cuda/launch_context.hpp"

// The CUDA runtime as host code of the room uses it.
namespace strata::ops::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    // Clears the sticky error, which the next launch would report.
    static_cast<void>(cudaGetLastError());
    device::cuda_failed(what, cudaGetErrorString(status));
  }
}

/// The context's stream. Makes its GPU the calling thread's current device.
inline cudaStream_t stream_of(Context& context) {
  const Queue queue = queue_of(context);
  check(cudaSetDevice(queue.device), "choosing the device");
  return static_cast<cudaStream_t>(queue.stream);
}

/// Scratch of the context for `count` elements. The next call invalidates it.
template <typename T>
T* scratch_of(Context& context, std::int64_t count) {
  stream_of(context);
  return reinterpret_cast<T*>(
      scratch_bytes_of(context, count * static_cast<std::int64_t>(sizeof(T))));
}

}  // namespace strata::ops::cuda
