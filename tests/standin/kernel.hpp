#pragma once

// What nvcc gives to a .cu file, for a C++ compiler. Included before the first line of every .cu
// file of the stand-in.

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <math.h>

// The runtime's template takes the address of a kernel that nvcc compiled; ours keeps its types.
#define cudaLaunchKernelEx standin_not_called
#include <cuda_runtime.h>
#undef cudaLaunchKernelEx

#include <nvtx3/nvToolsExt.h>

#include "blocks.hpp"
#include "record.hpp"
#include "runtime.hpp"

#define nvtxRangePushA(name) (standin::push_range(name), 0)
#define nvtxRangePop() (standin::pop_range(), 0)

// All threads of a block run on one thread of the system, and thread_local goes with extern as
// __shared__ does.
#undef __shared__
#define __shared__ thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

inline void __syncthreads() {
  standin::stop_at(standin::Stop::kBarrier);
}
inline int __syncthreads_or(int predicate) {
  return standin::any_in_block(predicate != 0) ? 1 : 0;
}
inline void __syncwarp(unsigned mask = standin::kWholeWarp) {
  standin::require_whole_warp(mask);
  standin::stop_at(standin::Stop::kWarpBarrier);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  standin::require_whole_warp(mask);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const standin::WarpValues& all = standin::exchange(standin::Stop::kShuffle, bits);
  std::memcpy(&value, &all[static_cast<unsigned>(source) % standin::kWarpThreads], sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x) ^ distance);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  standin::require_whole_warp(mask);
  const standin::WarpValues& all =
      standin::exchange(standin::Stop::kBallot, predicate != 0 ? 1U : 0U);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < standin::kWarpThreads; ++lane) {
    votes |= static_cast<unsigned>(all[lane]) << lane;
  }
  return votes;
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> values(arguments...);
  return standin::launch(*config, reinterpret_cast<const void*>(kernel), __PRETTY_FUNCTION__,
                         [kernel, values] { std::apply(kernel, values); });
}
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
