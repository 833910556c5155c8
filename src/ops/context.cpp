#include "strata/ops/context.hpp"

#include <utility>

#include "strata/core/error.hpp"

#include "cuda_state.hpp"
#include "primitives.hpp"

namespace strata::ops {

Context::Context(int threads) : threads_(threads), stream_(device::Device::cpu()) {
  require(threads >= 1, "a context with {} threads", threads);
  primitives_ = std::make_unique<Primitives>(threads);
}

Context::Context(device::Stream stream) : threads_(1), stream_(std::move(stream)) {
  cuda_state_ = std::make_unique<CudaState>(stream_.device());
}

Context Context::cuda(const device::Device& device) {
  require(device.kind() == device::DeviceKind::kCuda, "a GPU's context on {}", device.text());
  return Context(device::Stream(device));
}

Context::~Context() = default;
Context::Context(Context&& other) noexcept = default;
Context& Context::operator=(Context&& other) noexcept = default;

}  // namespace strata::ops
