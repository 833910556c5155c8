#pragma once

namespace strata::ops {

class Context;

/// Whether operations on GPUs are built. In other builds their calls stand in discarded statements
/// and need no definition.
#ifdef STRATA_HAVE_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

[[nodiscard]] bool on_gpu(const Context& context);

}  // namespace strata::ops
