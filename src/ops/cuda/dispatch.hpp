#pragma once

namespace strata::ops {

class Context;

/// Whether this build has operations on GPUs. A build without them defines no function of cuda::.
#ifdef STRATA_HAVE_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif
/// The same of cuDNN.
#ifdef STRATA_HAVE_CUDNN
inline constexpr bool kHasCudnn = true;
#else
inline constexpr bool kHasCudnn = false;
#endif

[[nodiscard]] bool on_gpu(const Context& context);

/// Enqueues kOperation, a function of cuda::, where the context's device is a GPU. Returns whether
/// it did.
template <auto kOperation, typename... Arguments>
[[nodiscard]] bool run_on_gpu(Context& context, const Arguments&... arguments) {
  if constexpr (kHasCuda) {
    if (on_gpu(context)) {
      kOperation(context, arguments...);
      return true;
    }
  }
  return false;
}

/// Whether cuDNN runs kPass.
template <auto kPass, typename... Arguments>
[[nodiscard]] bool run_by_cudnn(Context& context, const Arguments&... arguments) {
  if constexpr (kHasCudnn) {
    return kPass(context, arguments...);
  }
  return false;
}

}  // namespace strata::ops
