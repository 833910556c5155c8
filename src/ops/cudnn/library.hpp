#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <cuda_runtime.h>
#include <cudnn.h>

#include "strata/device/shared_library.hpp"
#include "strata/ops/context.hpp"

// Included only where cuDNN's header was found.
namespace strata::ops::cuda {

/// Why own kernels run an operation that cuDNN implements, for KernelsUsed.
inline constexpr std::string_view kCudnnNotFound = "own kernels, as cuDNN was not found";
inline constexpr std::string_view kUnsupported = "own kernels, as cuDNN does not support it";

/// cuDNN: the library, its handle and error handling.
class CudnnLibrary {
 public:
  /// Without a handle, for plans for GPUs that are only described. Throws: Error(kPeer) where it is
  /// found but lacks a function.
  CudnnLibrary();
  /// For the calling thread's current device. Throws: Error(kPeer) where the library is found but
  /// fails.
  explicit CudnnLibrary(cudaStream_t stream);
  ~CudnnLibrary();
  CudnnLibrary(const CudnnLibrary&) = delete;
  CudnnLibrary& operator=(const CudnnLibrary&) = delete;

  /// Whether the library was found.
  [[nodiscard]] bool loaded() const { return library_.loaded(); }
  /// Of the library that was opened, as CUDNN_VERSION.
  [[nodiscard]] std::int64_t version() const;
  /// The handle on the context's stream; null where the library was not found.
  [[nodiscard]] cudnnHandle_t handle() const { return handle_; }
  /// A function; null where the library was not found. Throws: Error(kPeer) where it lacks it.
  [[nodiscard]] device::FoundFunction find(const char* name) const {
    return loaded() ? library_.find(name) : device::FoundFunction(nullptr);
  }
  /// Throws: Error(kPeer) that names `what` unless the status is success.
  void check(cudnnStatus_t status, const std::string& what) const;
  /// As check(), but returns false where the library does not support the request.
  [[nodiscard]] bool takes(cudnnStatus_t status, const std::string& what) const;

 private:
  device::SharedLibrary library_;
  decltype(&cudnnDestroy) destroy_handle_ = find("cudnnDestroy");
  decltype(&cudnnGetVersion) version_ = find("cudnnGetVersion");
  decltype(&cudnnGetErrorString) error_string_ = find("cudnnGetErrorString");
  cudnnHandle_t handle_ = nullptr;
};

/// The context's, opened when it is first asked for, on its stream.
[[nodiscard]] const CudnnLibrary& cudnn_of(Context& context);

}  // namespace strata::ops::cuda
