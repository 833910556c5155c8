#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

namespace cuda {
/// cuBLASLt and the products that it was asked for; known where products are made.
class ProductLibrary;
/// cuDNN and the convolutions that it was asked for; known where convolutions are made.
class ConvolutionLibrary;
}  // namespace cuda

/// The GPU side of a Context: memory that operations work in, and libraries. Operations are done in
/// the order of one stream, so they share the memory.
class CudaState {
 public:
  /// Memory that cuBLASLt's kernels may work in. Fixed, for the choice of a kernel follows from it.
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
  /// The largest result that an operation hands back to the host at a time.
  static constexpr std::int64_t kResultBytes = 4096;

  CudaState(const device::Device& device, ConvolutionKernels convolution_kernels)
      : device_(device),
        convolution_kernels_(convolution_kernels),
        workspace_(device, kWorkspaceBytes),
        results_(kResultBytes) {}

  /// Device memory for one operation, which holds anything at first. What an earlier call gave is
  /// void.
  [[nodiscard]] std::byte* scratch(std::int64_t bytes) {
    if (bytes > scratch_.bytes()) {
      // The old memory is given back when the GPU has done what uses it.
      scratch_ = device::Buffer();
      scratch_ = device::Buffer(device_, bytes);
    }
    return scratch_.raw();
  }
  [[nodiscard]] std::byte* workspace() const { return workspace_.raw(); }
  /// Host memory of kResultBytes that the GPU writes results to.
  [[nodiscard]] std::byte* results() const { return results_.raw(); }
  /// Made when it is first used. Known to src/ops/matmul.cu.
  [[nodiscard]] auto& product_library() { return product_library_; }
  [[nodiscard]] ConvolutionKernels convolution_kernels() const { return convolution_kernels_; }
  /// Made when it is first used. Known to src/ops/cuda_library_convolution.cu.
  [[nodiscard]] auto& convolution_library() { return convolution_library_; }

 private:
  device::Device device_;
  ConvolutionKernels convolution_kernels_;
  device::Buffer workspace_;
  device::Buffer scratch_;
  device::PinnedBuffer results_;
  std::unique_ptr<cuda::ProductLibrary, void (*)(cuda::ProductLibrary*)> product_library_{
      nullptr, [](cuda::ProductLibrary*) {}};
  std::unique_ptr<cuda::ConvolutionLibrary, void (*)(cuda::ConvolutionLibrary*)>
      convolution_library_{nullptr, [](cuda::ConvolutionLibrary*) {}};
};

}  // namespace strata::ops
