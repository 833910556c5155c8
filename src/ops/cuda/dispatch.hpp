#pragma once

#include "strata/ops/context.hpp"

namespace strata::ops {

/// Whether operations on GPUs are built. In other builds their calls stand in discarded statements
/// and need no definition.
#ifdef STRATA_HAVE_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

[[nodiscard]] inline bool on_gpu(const Context& context) {
  return context.device().kind() == device::DeviceKind::kCuda;
}

}  // namespace strata::ops
