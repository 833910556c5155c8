#pragma once

#include <cstdint>

#include "cuda_kernel.hpp"

// Kernels in which some threads share a row: a warp where rows are short, a block where they are
// long. Sums are taken in a fixed tree, so that a row's bits follow from its length alone.
namespace strata::ops::cuda {

/// The longest row that one warp takes.
inline constexpr std::int64_t kWarpRow = 1024;

/// The threads of a row, seen by one of them. All of them call the same methods.
template <int kSize>
struct RowThreads {
  int lane = 0;  ///< this thread among them

  /// The sum of all threads' values, the same bits in each.
  __device__ double sum(double value) const {
    return combined(value, [](double a, double b) { return a + b; });
  }
  template <typename C>
  __device__ C largest(C value) const {
    return combined(value, [](C a, C b) { return larger(a, b); });
  }
  __device__ std::int64_t smallest(std::int64_t value) const {
    return combined(value, [](std::int64_t a, std::int64_t b) { return a < b ? a : b; });
  }

 private:
  /// Both threads of an exchange combine the same two values, in turned order, which for what is
  /// combined here makes no difference.
  template <typename V, typename Combine>
  __device__ V combined(V value, Combine combine) const {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
    }
    if constexpr (kSize > kWarp) {
      __shared__ V of_warp[kSize / kWarp];
      // The last exchange's values have been read.
      __syncthreads();
      if (lane % kWarp == 0) {
        of_warp[lane / kWarp] = value;
      }
      __syncthreads();
      value = of_warp[0];
#pragma unroll
      for (int warp = 1; warp < kSize / kWarp; ++warp) {
        value = combine(value, of_warp[warp]);
      }
    }
    return value;
  }
};

template <int kSize, typename Function>
__global__ void __launch_bounds__(kThreads) row_kernel(std::int64_t rows, Function function) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kSize) + threadIdx.x / kSize;
  // Whole warps, or whole blocks, stop here.
  if (row < rows) {
    function(RowThreads<kSize>{static_cast<int>(threadIdx.x) % kSize}, row);
  }
}

/// function(RowThreads, row) for all rows, each of `columns` elements.
template <typename Function>
void for_each_row(Context& context, const char* name, std::int64_t rows, std::int64_t columns,
                  const Function& function) {
  if (columns <= kWarpRow) {
    constexpr std::int64_t kRows = kThreads / kWarp;
    launch(context, name, {(rows + kRows - 1) / kRows, kThreads, 0}, row_kernel<kWarp, Function>,
           rows, function);
  } else {
    launch(context, name, {rows, kThreads, 0}, row_kernel<kThreads, Function>, rows, function);
  }
}

}  // namespace strata::ops::cuda
