#include "strata/ops/context.hpp"

#include <utility>

#include "strata/core/error.hpp"

#include "cuda/resources.hpp"
#include "onednn/primitive_cache.hpp"

namespace strata::ops {

Context::Context(int threads) : threads_(threads), stream_(device::Device::cpu()) {
  require(threads >= 1, "a context with {} threads", threads);
  primitives_ = std::make_unique<PrimitiveCache>(threads);
}

Context::Context(device::Stream stream, const CudaOptions& options)
    : threads_(1), stream_(std::move(stream)) {
  cuda_resources_ = std::make_unique<CudaResources>(stream_.device(), options);
}

Context Context::cuda(const device::Device& device, const CudaOptions& options) {
  require(device.kind() == device::DeviceKind::kCuda, "a GPU's context on {}", device.text());
  return {device::Stream(device), options};
}

PrimitiveCache& Context::primitives() {
  require(primitives_ != nullptr, "an operation for the CPU was given a context of {}",
          device().text());
  return *primitives_;
}

CudaResources& Context::cuda_resources() {
  require(cuda_resources_ != nullptr, "an operation for GPUs was given a context of {}",
          device().text());
  return *cuda_resources_;
}

std::int64_t Context::scratch_bytes() const {
  return cuda_resources_ == nullptr ? 0 : cuda_resources_->scratch_bytes();
}

Context::~Context() = default;
Context::Context(Context&& other) noexcept = default;
Context& Context::operator=(Context&& other) noexcept = default;

}  // namespace strata::ops
