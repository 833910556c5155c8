#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/failure.hpp"
#include "strata/ops/context.hpp"

#include "cuda/resources.hpp"

// What every kernel of the room is written and launched with. Included by .cu files alone. They are
// compiled so that products and sums are contracted only where fused() says so.
namespace strata {

/// Device code keeps bfloat16 in CUDA's type, whose bits are BFloat16's.
template <>
struct DTypeOf<__nv_bfloat16> : std::integral_constant<DType, DType::kBfloat16> {};
template <>
struct ComputeOf<__nv_bfloat16> {
  using Type = float;
};

}  // namespace strata

namespace strata::ops::cuda {

/// Threads of a block where nothing else is said.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

/// As with_stored(), with the types of device code.
template <typename Function>
void with_device_type(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(float{});
    case DType::kFloat64:
      return function(double{});
    case DType::kBfloat16:
      return function(__nv_bfloat16{});
    default:
      require(false, "a floating-point tensor was expected, this one is {}", name_of(dtype));
  }
}

/// The elements' address, or null where there is no tensor.
template <typename T, typename View>
auto device_or_null(const View& view) {
  return view.empty() ? nullptr : view.template device<T>();
}

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    // Else the next launch would be taken for the one that failed.
    static_cast<void>(cudaGetLastError());
    device::cuda_failed(what, cudaGetErrorString(status));
  }
}

/// The context's stream, on whose GPU the calls of this thread work from here on.
inline cudaStream_t stream_of(Context& context) {
  check(cudaSetDevice(static_cast<int>(context.device().index())), "choosing the device");
  return static_cast<cudaStream_t>(context.stream().raw());
}

/// How many blocks of how many threads run a kernel, with how much shared memory whose size is
/// known at launch only.
struct Grid {
  std::int64_t blocks = 0;
  int threads = kThreads;
  std::int64_t shared_bytes = 0;
};

/// Puts a kernel on the context's stream; `name` tells in an error what it was. Nothing happens for
/// no blocks.
template <typename... Parameters, typename... Arguments>
void launch(Context& context, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (grid.blocks == 0) {
    return;
  }
  require(grid.blocks > 0 && grid.blocks <= std::numeric_limits<std::int32_t>::max(),
          "{} on {} blocks", name, grid.blocks);
  const cudaStream_t stream = stream_of(context);
  constexpr std::int64_t kAlwaysGiven = 48 * 1024;
  if (grid.shared_bytes > kAlwaysGiven) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

/// Enough blocks of kThreads for `count` threads.
inline Grid grid_of(std::int64_t count) {
  return {(count + kThreads - 1) / kThreads, kThreads, 0};
}

/// This thread's number in the whole grid.
__device__ inline std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// Scratch of the context for `count` elements. Void after the next call.
template <typename T>
T* scratch_of(Context& context, std::int64_t count) {
  stream_of(context);
  return reinterpret_cast<T*>(
      context.cuda_resources().scratch(count * static_cast<std::int64_t>(sizeof(T))));
}

/// An element in the type that it is computed in.
__device__ inline float value_of(float x) {
  return x;
}
__device__ inline double value_of(double x) {
  return x;
}
__device__ inline float value_of(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

/// A number as it is stored as T: rounded to nearest, ties to even.
template <typename T>
__device__ inline T to_storage(Compute<T> value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

/// a * b + c, rounded once.
__device__ inline float fused(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ inline double fused(double a, double b, double c) {
  return fma(a, b, c);
}

__device__ inline float exponential(float x) {
  return expf(x);
}
__device__ inline double exponential(double x) {
  return exp(x);
}

/// The larger number; a NaN is passed over where the other is none.
__device__ inline float larger(float a, float b) {
  return fmaxf(a, b);
}
__device__ inline double larger(double a, double b) {
  return fmax(a, b);
}

}  // namespace strata::ops::cuda
