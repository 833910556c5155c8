#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"

#include "cuda/stream.hpp"

// Common to all kernels: launches, types and arithmetic. Included by .cu files alone, which are
// compiled without contraction: only fused() is an FMA.
namespace strata {

/// Device code uses CUDA's bfloat16 type, which has BFloat16's bits.
template <>
struct DTypeOf<__nv_bfloat16> : std::integral_constant<DType, DType::kBfloat16> {};
template <>
struct ComputeOf<__nv_bfloat16> {
  using Type = float;
};

}  // namespace strata

namespace strata::ops::cuda {

/// Default threads of a block.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

/// As with_stored(), with device types.
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
      refuse_dtype(dtype);
  }
}

/// The address of the elements, or null for an empty view.
template <typename T, typename View>
auto device_or_null(const View& view) {
  return view.empty() ? nullptr : view.template device<T>();
}

/// Calls function(address) with a tensor's elements, which are of type T or its compute type.
template <typename T, typename View, typename Function>
void with_device_elements(const View& tensor, const Function& function) {
  if (tensor.dtype() == kDTypeOf<T>) {
    function(tensor.template device<T>());
  } else {
    function(tensor.template device<Compute<T>>());
  }
}

/// Launch configuration: blocks, threads of a block and dynamic shared memory.
struct Grid {
  std::int64_t blocks = 0;
  int threads = kThreads;
  std::int64_t shared_bytes = 0;
};

/// Launches a kernel on the context's stream; `name` identifies it in errors. Does nothing for 0
/// blocks.
template <typename... Parameters, typename... Arguments>
void launch(Context& context, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (grid.blocks == 0) {
    return;
  }
  require_blocks(name, grid.blocks);
  const cudaStream_t stream = stream_of(context);
  constexpr std::int64_t kAlwaysGiven = 48 * 1024;
  if (grid.shared_bytes > kAlwaysGiven) {
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared_bytes));
    if (status == cudaErrorInvalidValue) {
      fail(ExitCode::kUsage,
           "{} needs {} KiB of shared memory in a block, more than this GPU has; choose another "
           "numerics.dtype than float64, or more model.heads",
           name, grid.shared_bytes / 1024);
    }
    check(status, name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

/// all / held, rounded up.
__host__ __device__ constexpr std::int64_t count_of(std::int64_t all, std::int64_t held) {
  return (all + held - 1) / held;
}

/// Enough blocks of kThreads for `count` threads.
inline Grid grid_of(std::int64_t count) {
  return {count_of(count, kThreads), kThreads, 0};
}

/// This thread's number in the whole grid.
__device__ inline std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// Converts a stored element to its compute type.
__device__ inline float value_of(float x) {
  return x;
}
__device__ inline double value_of(double x) {
  return x;
}
__device__ inline float value_of(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

/// Converts a computed value to the stored type T: rounds to nearest, ties to even.
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

/// The maximum; ignores a NaN if the other is a number.
__device__ inline float larger(float a, float b) {
  return fmaxf(a, b);
}
__device__ inline double larger(double a, double b) {
  return fmax(a, b);
}

}  // namespace strata::ops::cuda
