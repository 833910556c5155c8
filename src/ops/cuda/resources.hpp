#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

namespace cuda {
/// cuBLASLt and the products that it was asked for; known where products are made.
class CublasLtProducts;
/// cuDNN; known where it is used.
class CudnnLibrary;
/// The convolutions that cuDNN was asked for; known where convolutions are made.
class CudnnConvolutionPlans;
/// The attention that cuDNN was asked for; known where attention is made.
class CudnnAttentionPlans;
}  // namespace cuda

/// The GPU side of a Context: memory that operations work in, and libraries. Operations are done in
/// the order of one stream, so they share the memory.
class CudaResources {
 public:
  /// Memory that cuBLASLt's kernels may work in. Fixed, for the choice of a kernel follows from it.
  static constexpr std::int64_t kWorkspaceBytes = Context::kCudaBytes;

  CudaResources(const device::Device& device, const CudaOptions& options)
      : device_(device),
        options_(options),
        workspace_(device, kWorkspaceBytes),
        origin_(device, sizeof(std::int64_t)) {}

  /// Device memory for one operation, which holds anything at first. What an earlier call gave is
  /// void.
  [[nodiscard]] std::byte* scratch(std::int64_t bytes) {
    if (bytes > scratch_.bytes()) {
      // The old memory is given back when the GPU has done what uses it.
      scratch_ = device::Buffer();
      scratch_ = device::Buffer(device_, bytes);
      ++scratch_number_;
    }
    return scratch_.raw();
  }
  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_.bytes(); }
  /// Another one for every scratch memory.
  [[nodiscard]] std::int64_t scratch_number() const { return scratch_number_; }
  /// The sample from which on dropout counts, and where its kernel reads it (set_sample_origin).
  [[nodiscard]] std::int64_t sample_origin() const { return sample_origin_; }
  [[nodiscard]] std::int64_t* origin() const {
    return reinterpret_cast<std::int64_t*>(origin_.raw());
  }
  /// What the host goes by; writing the GPU's is src/ops/dropout.cu's.
  void set_origin(std::int64_t sample) { sample_origin_ = sample; }
  /// The additions in device memory, where they stay: an operation is given the same ones again and
  /// again, and to copy them behind other work may wait for it.
  [[nodiscard]] const ReductionStep* additions(std::span<const ReductionStep> steps) {
    const auto bytes = std::as_bytes(steps);
    for (const auto& [known, memory] : additions_) {
      if (std::ranges::equal(known, bytes)) {
        return reinterpret_cast<const ReductionStep*>(memory.raw());
      }
    }
    const Shape shape{static_cast<std::int64_t>(bytes.size())};
    device::Buffer memory(device_, shape.count());
    device::copy_tensor(ConstTensorView(bytes.data(), shape, DType::kUint8),
                        memory.view(0, shape, DType::kUint8));
    additions_.emplace_back(std::vector(bytes.begin(), bytes.end()), std::move(memory));
    return reinterpret_cast<const ReductionStep*>(additions_.back().second.raw());
  }
  [[nodiscard]] std::byte* workspace() const { return workspace_.raw(); }
  /// Made when it is first used. Known to src/ops/matmul.cu.
  [[nodiscard]] auto& cublaslt_products() { return product_library_; }
  [[nodiscard]] const CudaOptions& options() const { return options_; }
  /// Made when it is first used. Known to src/ops/cuda_cudnn_library.cu.
  [[nodiscard]] auto& cudnn_library() { return cudnn_library_; }
  /// Made when it is first used. Known to src/ops/cuda_library_convolution.cu.
  [[nodiscard]] auto& cudnn_convolution_plans() { return convolution_library_; }
  /// Made when it is first used. Known to src/ops/cuda_library_attention.cu.
  [[nodiscard]] auto& cudnn_attention_plans() { return attention_library_; }

 private:
  device::Device device_;
  CudaOptions options_;
  device::Buffer workspace_;
  device::Buffer scratch_;
  std::int64_t scratch_number_ = 0;
  device::Buffer origin_;
  std::int64_t sample_origin_ = 0;
  std::vector<std::pair<std::vector<std::byte>, device::Buffer>> additions_;
  std::unique_ptr<cuda::CublasLtProducts, void (*)(cuda::CublasLtProducts*)> product_library_{
      nullptr, [](cuda::CublasLtProducts*) {}};
  std::unique_ptr<cuda::CudnnLibrary, void (*)(cuda::CudnnLibrary*)> cudnn_library_{
      nullptr, [](cuda::CudnnLibrary*) {}};
  // They use the one above, which outlives them.
  std::unique_ptr<cuda::CudnnConvolutionPlans, void (*)(cuda::CudnnConvolutionPlans*)>
      convolution_library_{nullptr, [](cuda::CudnnConvolutionPlans*) {}};
  std::unique_ptr<cuda::CudnnAttentionPlans, void (*)(cuda::CudnnAttentionPlans*)>
      attention_library_{nullptr, [](cuda::CudnnAttentionPlans*) {}};
};

}  // namespace strata::ops
