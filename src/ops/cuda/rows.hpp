#pragma once

#include <cstdint>

#include "strata/core/error.hpp"

#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"

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

/// Chunks of a row that a thread keeps in registers.
inline constexpr int kRegisterChunks = 4;
/// The longest row that the registers of a warp keep.
template <typename T>
inline constexpr std::int64_t kWarpRegisterRow = std::int64_t{kRegisterChunks} * kWarp* kWide<T>;

/// function(number, first) for this thread's chunks of a row, which begin at `first`: every
/// kSize-th, whatever the row's address. Chunks from number kRegisterChunks on have that number.
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

/// A row that is read once for several passes over it: a thread's first chunks are kept, others
/// are read again. Behind the row's end are zeros.
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
  /// What for_each_chunk() gives for `number` has to be a constant.
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

/// Asked for one block a multiprocessor, the compiler does not spill registers to have room for
/// more.
template <int kSize, typename Function>
__global__ void __launch_bounds__(kRowBlock<kSize>, 1)
    row_kernel(std::int64_t rows, Function function) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kRowBlock<kSize> / kSize) + threadIdx.x / kSize;
  // Whole warps, or whole blocks, stop here.
  if (row < rows) {
    function(RowThreads<kSize>{static_cast<int>(threadIdx.x) % kSize}, row);
  }
}

/// function(RowThreads, row) for all rows, each of `columns` elements; up to `warp_row` of them are
/// a warp's.
template <typename Function>
void for_each_row(Context& context, const char* name, std::int64_t rows, std::int64_t columns,
                  const Function& function, std::int64_t warp_row = kWarpRow) {
  require(columns <= kLongestRow, "{} of rows of {} elements", name, columns);
  if (columns <= warp_row) {
    constexpr std::int64_t kRows = kThreads / kWarp;
    launch(context, name, {(rows + kRows - 1) / kRows, kThreads, 0}, row_kernel<kWarp, Function>,
           rows, function);
  } else {
    launch(context, name, {rows, kThreads, 0}, row_kernel<kThreads, Function>, rows, function);
  }
}

}  // namespace strata::ops::cuda
