#include "strata/ops/context.hpp"

#include "strata/core/error.hpp"

#include "primitives.hpp"

namespace strata::ops {

Context::Context(int threads) : device_(device::Device::cpu()), threads_(threads) {
  require(threads >= 1, "a context with {} threads", threads);
  primitives_ = std::make_unique<Primitives>(threads);
}

Context::~Context() = default;
Context::Context(Context&& other) noexcept = default;
Context& Context::operator=(Context&& other) noexcept = default;

}  // namespace strata::ops
