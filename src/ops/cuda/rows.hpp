#pragma once

#include <cstdint>

#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"

// Kernels in which a warp (short rows) or a block (long rows) shares a row. Sums use a fixed tree,
// so a row's bits depend only on its length.
namespace strata::ops::cuda {

/// The longest row for one warp.
inline constexpr std::int64_t kWarpRow = 1024;

/// The group of threads that shares a row; all threads call the same methods.
template <int kSize>
struct RowThreads {
  int lane = 0;  ///< this thread's index in the group

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

  /// Calls function(i) for every element i of `count` that is this thread's.
  template <typename Function>
  __device__ void for_each(std::int64_t count, const Function& function) const {
    for (std::int64_t i = lane; i < count; i += kSize) {
      function(i);
    }
  }

 private:
  /// Butterfly reduction: both threads of an exchange combine the same two values; the operations
  /// are commutative.
  template <typename V, typename Combine>
  __device__ V combined(V value, Combine combine) const {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
    }
    if constexpr (kSize > kWarp) {
      __shared__ V of_warp[kSize / kWarp];
      // All threads have read the previous values.
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

/// Chunks of a row that a thread keeps in registers.
inline constexpr int kRegisterChunks = 4;
/// The longest row that fits a warp's registers.
template <typename T>
inline constexpr std::int64_t kWarpRegisterRow = std::int64_t{kRegisterChunks} * kWarp* kWide<T>;

/// Calls function(number, first) for this thread's chunks of a row: every kSize-th chunk, starting
/// at element `first`. `number` is at most kRegisterChunks.
template <int kSize, typename T, typename Function>
__device__ void for_each_chunk(const RowThreads<kSize>& threads, int columns,
                               const Function& function) {
  int first = threads.lane * kWide<T>;
#pragma unroll
  for (int number = 0; number < kRegisterChunks; ++number) {
    if (first < columns) {
      function(number, first);
    }
    first += kSize * kWide<T>;
  }
  for (; first < columns; first += kSize * kWide<T>) {
    function(kRegisterChunks, first);
  }
}

/// A row for several passes: a thread's first chunks stay in registers, further chunks are loaded
/// again. Elements past the end are 0.
template <int kSize, typename T>
class RegisterRow {
 public:
  __device__ RegisterRow(const RowThreads<kSize>& threads, const T* row, int columns)
      : row_(row), columns_(columns) {
#pragma unroll
    for (int number = 0; number < kRegisterChunks; ++number) {
      const int first = (number * kSize + threads.lane) * kWide<T>;
      if (first < columns) {
        chunks_[number] = chunk_at(row, columns, first, to_storage<T>(Compute<T>{0}));
      }
    }
  }
  /// `number` must be for_each_chunk()'s, a compile-time constant after unrolling.
  __device__ Wide<T> chunk(int number, int first) const {
    return number < kRegisterChunks ? chunks_[number]
                                    : chunk_at(row_, columns_, first, to_storage<T>(Compute<T>{0}));
  }

 private:
  const T* row_;
  int columns_;
  Wide<T> chunks_[kRegisterChunks];
};

/// Threads of a block of rows that kSize threads share.
template <int kSize>
inline constexpr int kRowBlock = kSize > kThreads ? kSize : kThreads;

/// At least one block for each multiprocessor: the compiler need not spill registers to fit more.
template <int kSize, typename Function>
__global__ void __launch_bounds__(kRowBlock<kSize>, 1)
    row_kernel(std::int64_t rows, Function function) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kRowBlock<kSize> / kSize) + threadIdx.x / kSize;
  // Exits whole warps or whole blocks.
  if (row < rows) {
    function(RowThreads<kSize>{static_cast<int>(threadIdx.x) % kSize}, row);
  }
}

/// function(RowThreads, row) for all rows, each of `columns` elements; rows of up to `warp_row`
/// elements take a warp, longer ones a block.
template <typename Function>
void for_each_row(Context& context, const char* name, std::int64_t rows, std::int64_t columns,
                  const Function& function, std::int64_t warp_row = kWarpRow) {
  require_rows(name, columns, kLongestRow);
  if (columns <= warp_row) {
    constexpr std::int64_t kRows = kThreads / kWarp;
    launch(context, name, {(rows + kRows - 1) / kRows, kThreads, 0}, row_kernel<kWarp, Function>,
           rows, function);
  } else {
    launch(context, name, {rows, kThreads, 0}, row_kernel<kThreads, Function>, rows, function);
  }
}

}  // namespace strata::ops::cuda
