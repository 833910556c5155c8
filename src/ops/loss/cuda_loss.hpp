#pragma once

#include <cmath>
#include <cstdint>

#include "strata/ops/loss.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"
#include "cuda/rows.hpp"
#include "loss/row_loss.hpp"

// Shared by the losses' GPU kernels. Included by .cu files alone.
namespace strata::ops::cuda {

/// Softmax statistics of a row, the same in all threads.
template <typename C>
struct RowPeak {
  C largest;
  /// Of exp(element - largest); NaN where the row has one.
  double sum;
  /// Index of the first maximum; the row's length with NaNs.
  std::int64_t first;
};

/// Online softmax: reads the row once; a thread rescales its sum when its maximum grows. Source:
/// Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
template <int kSize, typename T>
__device__ RowPeak<Compute<T>> peak_of(const RowThreads<kSize>& threads, const T* x,
                                       std::int64_t columns) {
  using C = Compute<T>;
  const C least = -static_cast<C>(INFINITY);
  C largest = least;
  C sum{0};
  const int length = static_cast<int>(columns);
  int at = length;
  for (int first = threads.lane * kWide<T>; first < length; first += kSize * kWide<T>) {
    const Wide<T> chunk = joined_chunk_at(x, length, first, to_storage<T>(least));
    C highest = value_of(chunk.at[0]);
#pragma unroll
    for (int i = 1; i < kWide<T>; ++i) {
      highest = larger(highest, value_of(chunk.at[i]));
    }
    if (highest > largest) {
      sum *= exponential(largest - highest);
      largest = highest;
#pragma unroll
      for (int i = kWide<T> - 1; i >= 0; --i) {
        at = value_of(chunk.at[i]) == highest ? first + i : at;
      }
    }
    // Avoids inf - inf.
    const C from = largest == least ? C{0} : largest;
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) {
      sum += exponential(value_of(chunk.at[i]) - from);
    }
  }
  const C peak = threads.largest(largest);
  const std::int64_t index = threads.smallest(largest == peak ? at : length);
  const double total = threads.sum(static_cast<double>(sum * exponential(largest - peak)));
  return {peak, total, total == total ? index : columns};
}

/// to[i] = value(i, x[i]) for a row, with 16-byte stores from the first multiple of 16 in `to` on.
/// `to` may be x. Goes from the last elements to the first: the last are the likeliest to be in the
/// cache.
template <int kSize, typename T, typename Function>
__device__ void map_row(const RowThreads<kSize>& threads, const T* x, T* to, std::int64_t columns,
                        const Function& value) {
  const int length = static_cast<int>(columns);
  const int past = elements_past(to);
  const int before = past == 0 ? 0 : kWide<T> - past;
  const int head = before < length ? before : length;
  const int chunks = (length - head) / kWide<T>;
  const int inside = chunks * kWide<T>;
  for (int i = threads.lane; i < length - inside; i += kSize) {
    const int at = i < head ? i : i + inside;
    to[at] = to_storage<T>(value(at, value_of(x[at])));
  }
  for (int number = chunks - 1 - threads.lane; number >= 0; number -= kSize) {
    const int first = head + number * kWide<T>;
    Wide<T> chunk = joined_chunk_at(x, length, first, to_storage<T>(Compute<T>{0}));
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) {
      chunk.at[i] = to_storage<T>(value(first + i, value_of(chunk.at[i])));
    }
    *reinterpret_cast<Wide<T>*>(to + first) = chunk;
  }
}

/// Longer rows take blocks of kLongRowThreads: with fewer rows in flight, a row is likelier to be
/// in the cache when it is read again.
inline constexpr std::int64_t kLongRowBytes = 16 * 1024;
/// A thread of the largest blocks has too few registers for float64.
template <typename T>
inline constexpr int kLongRowThreads = sizeof(T) == sizeof(double) ? 512 : 1024;

/// As for_each_row(), for rows of logits of type T.
template <typename T, typename Function>
void for_each_logit_row(Context& context, const char* name, const Rows& shape,
                        const Function& function) {
  require_rows(name, shape.columns, kLongestRow);
  if (shape.columns * static_cast<std::int64_t>(sizeof(T)) <= kLongRowBytes) {
    for_each_row(context, name, shape.rows, shape.columns, function);
  } else {
    launch(context, name, {shape.rows, kLongRowThreads<T>, 0},
           row_kernel<kLongRowThreads<T>, Function>, shape.rows, function);
  }
}

/// Sums the rows' losses (each thread every kThreads-th row, then a tree) and finds the first bad
/// label; targets may be null. One block.
__global__ inline void write_sums_kernel(std::int64_t rows, const RowLoss* losses,
                                         const std::int64_t* targets, std::int64_t classes,
                                         LossSums* sums) {
  const RowThreads<kThreads> threads{static_cast<int>(threadIdx.x)};
  double loss = 0.0;
  std::int64_t correct = 0;
  std::int64_t counted = 0;
  std::int64_t bad = rows;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) {
    loss += losses[row].loss;
    correct += losses[row].correct;
    counted += targets == nullptr || is_target(targets[row], classes) ? 1 : 0;
    if (targets != nullptr && bad == rows && is_bad_target(targets[row], classes)) {
      bad = row;
    }
  }
  loss = threads.sum(loss);
  // A double holds these integers exactly.
  correct = static_cast<std::int64_t>(threads.sum(static_cast<double>(correct)));
  counted = static_cast<std::int64_t>(threads.sum(static_cast<double>(counted)));
  bad = threads.smallest(bad);
  if (threadIdx.x == 0) {
    *sums = bad < rows ? LossSums{loss, correct, bad, targets[bad], counted}
                       : LossSums{loss, correct, -1, 0, counted};
  }
}

/// Sums the losses of each sample's valid rows (as write_sums_kernel) and counts its targets, which
/// may be null. One block for each sample of `each` rows.
__global__ inline void write_samples_kernel(std::int64_t rows, const RowLoss* losses,
                                            const std::int64_t* targets, std::int64_t classes,
                                            std::int64_t each, double* samples) {
  const RowThreads<kThreads> threads{static_cast<int>(threadIdx.x)};
  const std::int64_t sample = blockIdx.x;
  const std::int64_t end = (sample + 1) * each < rows ? (sample + 1) * each : rows;
  double loss = 0.0;
  double counted = 0.0;
  for (std::int64_t row = sample * each + threadIdx.x; row < end; row += kThreads) {
    loss += losses[row].loss;
    counted += targets == nullptr || is_target(targets[row], classes) ? 1.0 : 0.0;
  }
  loss = threads.sum(loss);
  counted = threads.sum(counted);
  if (threadIdx.x == 0) {
    samples[sample * kSampleElements] = loss;
    samples[sample * kSampleElements + 1] = counted;
  }
}

static_assert(sizeof(LossSums) == kLossElements * sizeof(std::int64_t));

/// Writes `sums` from the rows' losses; `losses` and `targets`, which may be null, are device
/// memory.
inline void write_sums(Context& context, std::int64_t rows, const RowLoss* losses,
                       const std::int64_t* targets, std::int64_t classes, const TensorView& sums) {
  launch(context, "adding losses", {1, kThreads, 0}, write_sums_kernel, rows, losses, targets,
         classes, reinterpret_cast<LossSums*>(sums.device<std::int64_t>()));
}

/// The same of each sample of `all_rows` rows, unless `samples` is empty.
inline void write_samples(Context& context, std::int64_t rows, const RowLoss* losses,
                          const std::int64_t* targets, std::int64_t classes, std::int64_t all_rows,
                          const TensorView& samples) {
  const std::int64_t count = samples.count() / kSampleElements;
  if (count > 0) {
    launch(context, "adding losses of samples", {count, kThreads, 0}, write_samples_kernel, rows,
           losses, targets, classes, all_rows / count, samples.device<double>());
  }
}

}  // namespace strata::ops::cuda
