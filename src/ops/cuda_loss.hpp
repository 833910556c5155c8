#pragma once

#include <cstdint>

#include "strata/ops/loss.hpp"

#include "cuda_kernel.hpp"
#include "cuda_rows.hpp"

// What operations that give a loss share. Included by .cu files alone.
namespace strata::ops::cuda {

/// What a row gives to LossSums.
struct RowLoss {
  double loss;
  std::int64_t correct;
};

__device__ inline bool is_target(std::int64_t target, std::int64_t classes) {
  return target >= 0 && target < classes;
}

/// What a row's softmax follows from, the same in all of its threads.
template <typename C>
struct RowPeak {
  C largest;
  /// Of exp(element - largest); NaN where the row has one.
  double sum;
  /// The first element that is the largest; among NaNs none, which is the row's length.
  std::int64_t first;
};

template <int kSize, typename T>
__device__ RowPeak<Compute<T>> peak_of(const RowThreads<kSize>& threads, const T* x,
                                       std::int64_t columns) {
  using C = Compute<T>;
  C largest = value_of(x[0]);
  for (std::int64_t i = threads.lane; i < columns; i += kSize) {
    largest = larger(largest, value_of(x[i]));
  }
  largest = threads.largest(largest);
  C part{0};
  std::int64_t first = columns;
  for (std::int64_t i = threads.lane; i < columns; i += kSize) {
    const C value = value_of(x[i]);
    part += exponential(value - largest);
    first = value == largest && i < first ? i : first;
  }
  first = threads.smallest(first);
  const double sum = threads.sum(static_cast<double>(part));
  return {largest, sum, sum == sum ? first : columns};
}

/// The first row whose target is outside [0, classes); `rows` where there is none. One block, whose
/// threads look at every kThreads-th row; only its first thread knows the answer.
__device__ inline std::int64_t first_bad_row(std::int64_t rows, const std::int64_t* targets,
                                             std::int64_t classes) {
  __shared__ std::int64_t first_of[kThreads];
  std::int64_t first = rows;
  for (std::int64_t row = threadIdx.x; row < rows && first == rows; row += kThreads) {
    first = is_target(targets[row], classes) ? rows : row;
  }
  first_of[threadIdx.x] = first;
  __syncthreads();
  for (int thread = 1; threadIdx.x == 0 && thread < kThreads; ++thread) {
    first = first_of[thread] < first ? first_of[thread] : first;
  }
  return first;
}

/// The rows' losses, added in order, and the first bad label; no targets: null. One block.
__global__ inline void write_sums_kernel(std::int64_t rows, const RowLoss* losses,
                                         const std::int64_t* targets, std::int64_t classes,
                                         LossSums* sums) {
  __shared__ RowLoss run[kThreads];
  double loss = 0.0;
  std::int64_t correct = 0;
  for (std::int64_t begin = 0; begin < rows; begin += kThreads) {
    if (begin + threadIdx.x < rows) {
      run[threadIdx.x] = losses[begin + threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = static_cast<int>(rows - begin < kThreads ? rows - begin : kThreads);
      for (int i = 0; i < count; ++i) {
        loss += run[i].loss;
        correct += run[i].correct;
      }
    }
    __syncthreads();
  }
  const std::int64_t looked_at = targets == nullptr ? 0 : rows;
  const std::int64_t bad = first_bad_row(looked_at, targets, classes);
  if (threadIdx.x == 0) {
    *sums = bad < looked_at ? LossSums{loss, correct, bad, targets[bad]}
                            : LossSums{loss, correct, -1, 0};
  }
}

static_assert(sizeof(LossSums) == kLossElements * sizeof(std::int64_t));

/// Adds up what the rows gave; `losses` and `targets`, which may be null, are device memory.
inline void write_sums(Context& context, std::int64_t rows, const RowLoss* losses,
                       const std::int64_t* targets, std::int64_t classes, const TensorView& sums) {
  launch(context, "adding losses", {1, kThreads, 0}, write_sums_kernel, rows, losses, targets,
         classes, reinterpret_cast<LossSums*>(sums.device<std::int64_t>()));
}

}  // namespace strata::ops::cuda
