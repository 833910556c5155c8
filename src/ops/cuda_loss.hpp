#pragma once

#include <cstdint>

#include "strata/ops/loss.hpp"

#include "checks.hpp"
#include "cuda_kernel.hpp"

// What operations that give a loss share. Included by .cu files alone.
namespace strata::ops::cuda {

/// What a row gives to LossSums.
struct RowLoss {
  double loss;
  std::int64_t correct;
};

/// A target that the model has no output for; row is -1 where there is none.
struct BadTarget {
  std::int64_t row;
  std::int64_t target;
};

/// What a loss hands back to the host.
struct LossResult {
  RowLoss sums;
  BadTarget bad;
};

__device__ inline bool is_target(std::int64_t target, std::int64_t classes) {
  return target >= 0 && target < classes;
}

/// The first bad target of all rows; one block, whose threads look at every kThreads-th row.
__device__ inline void find_bad_target(std::int64_t rows, const std::int64_t* targets,
                                       std::int64_t classes, BadTarget* bad) {
  __shared__ std::int64_t first_of[kThreads];
  std::int64_t first = rows;
  for (std::int64_t row = threadIdx.x; row < rows && first == rows; row += kThreads) {
    first = is_target(targets[row], classes) ? rows : row;
  }
  first_of[threadIdx.x] = first;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int thread = 1; thread < kThreads; ++thread) {
      first = first_of[thread] < first ? first_of[thread] : first;
    }
    *bad = first < rows ? BadTarget{first, targets[first]} : BadTarget{-1, 0};
  }
}

/// The rows' losses, added in order, and the first bad target; no targets: null. One block.
__global__ inline void sum_losses_kernel(std::int64_t rows, const RowLoss* losses,
                                         const std::int64_t* targets, std::int64_t classes,
                                         LossResult* result) {
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
  if (threadIdx.x == 0) {
    result->sums = {loss, correct};
  }
  find_bad_target(targets == nullptr ? 0 : rows, targets, classes, &result->bad);
}

__global__ inline void find_bad_target_kernel(std::int64_t rows, const std::int64_t* targets,
                                              std::int64_t classes, BadTarget* bad) {
  find_bad_target(rows, targets, classes, bad);
}

/// Throws Error(kData) for a bad target.
inline void require_no_bad_target(const BadTarget& bad, std::int64_t classes) {
  if (bad.row >= 0) {
    fail_target(bad.row, bad.target, classes);
  }
}

/// Adds up what the rows gave and waits for it. `losses` and `result` are device memory; `targets`
/// may be null. Throws: Error(kData) for a target outside [0, classes).
inline LossSums sum_of_losses(Context& context, std::int64_t rows, const RowLoss* losses,
                              const std::int64_t* targets, std::int64_t classes,
                              LossResult* result) {
  launch(context, "adding losses", {1, kThreads, 0}, sum_losses_kernel, rows, losses, targets,
         classes, result);
  const LossResult got = result_of(context, result);
  require_no_bad_target(got.bad, classes);
  return {got.sums.loss, got.sums.correct};
}

/// Memory for the result and for what `rows` rows give.
struct LossMemory {
  LossMemory(Context& context, std::int64_t rows) {
    static_assert(sizeof(LossResult) % alignof(RowLoss) == 0);
    std::byte* const memory =
        scratch_of<std::byte>(context, static_cast<std::int64_t>(sizeof(LossResult)) +
                                           rows * static_cast<std::int64_t>(sizeof(RowLoss)));
    result = reinterpret_cast<LossResult*>(memory);
    losses = reinterpret_cast<RowLoss*>(memory + sizeof(LossResult));
  }

  LossResult* result;
  RowLoss* losses;
};

}  // namespace strata::ops::cuda
