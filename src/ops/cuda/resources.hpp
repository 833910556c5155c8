#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

namespace cuda {
/// cuBLASLt and its cached products; defined in matmul.
class CublasLtProducts;
/// cuDNN; defined in cudnn.
class CudnnLibrary;
/// cuDNN's cached convolution plans; defined in convolution.
class CudnnConvolutionPlans;
/// cuDNN's cached attention plans; defined in attention.
class CudnnAttentionPlans;
}  // namespace cuda

/// The GPU side of a Context: scratch memory and libraries. Operations run in the order of one
/// stream, so they share the scratch.
class CudaResources {
 public:
  /// cuBLASLt's workspace. Fixed, because the choice of a kernel depends on it.
  static constexpr std::int64_t kWorkspaceBytes = Context::kCudaBytes;

  CudaResources(const device::Device& device, const CudaOptions& options)
      : device_(device),
        options_(options),
        workspace_(device, kWorkspaceBytes),
        origin_(device, sizeof(std::int64_t)) {}

  /// Uninitialised device memory for one operation. Invalidates the result of earlier calls.
  [[nodiscard]] std::byte* scratch(std::int64_t bytes) {
    if (bytes > scratch_.bytes()) {
      // Frees the old memory after the GPU has finished the work that uses it.
      scratch_ = device::Buffer();
      scratch_ = device::Buffer(device_, bytes);
      ++scratch_number_;
    }
    return scratch_.raw();
  }
  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_.bytes(); }
  /// A new number for every scratch memory.
  [[nodiscard]] std::int64_t scratch_number() const { return scratch_number_; }
  /// Sample number that dropout counts from, and its copy that the kernel reads
  /// (set_sample_origin).
  [[nodiscard]] std::int64_t sample_origin() const { return sample_origin_; }
  [[nodiscard]] std::int64_t* origin() const {
    return reinterpret_cast<std::int64_t*>(origin_.raw());
  }
  /// The host's copy; dropout.cu writes the GPU's.
  void set_origin(std::int64_t sample) { sample_origin_ = sample; }
  /// The steps in device memory, cached: operations repeat the same steps, and a new copy might
  /// wait for other work.
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
  /// Created at first use by matmul.cu.
  [[nodiscard]] auto& cublaslt_products() { return product_library_; }
  [[nodiscard]] const CudaOptions& options() const { return options_; }
  /// Context::kernels().
  [[nodiscard]] auto& kernels() { return kernels_; }
  /// Created at first use by cudnn/library.cu.
  [[nodiscard]] auto& cudnn_library() { return cudnn_library_; }
  /// Created at first use by cudnn_convolution.cu.
  [[nodiscard]] auto& cudnn_convolution_plans() { return convolution_library_; }
  /// Created at first use by cudnn_attention.cu.
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
  KernelsUsed kernels_;
  std::unique_ptr<cuda::CublasLtProducts, void (*)(cuda::CublasLtProducts*)> product_library_{
      nullptr, [](cuda::CublasLtProducts*) {}};
  std::unique_ptr<cuda::CudnnLibrary, void (*)(cuda::CudnnLibrary*)> cudnn_library_{
      nullptr, [](cuda::CudnnLibrary*) {}};
  // Destroyed before the library above, which they use.
  std::unique_ptr<cuda::CudnnConvolutionPlans, void (*)(cuda::CudnnConvolutionPlans*)>
      convolution_library_{nullptr, [](cuda::CudnnConvolutionPlans*) {}};
  std::unique_ptr<cuda::CudnnAttentionPlans, void (*)(cuda::CudnnAttentionPlans*)>
      attention_library_{nullptr, [](cuda::CudnnAttentionPlans*) {}};
};

}  // namespace strata::ops
