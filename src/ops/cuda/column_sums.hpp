#pragma once

#include <cstdint>

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"

// Sums over rows. A block of threads adds a part, kPartRows rows: each thread adds kSumRows of them
// in order in C, then a fixed tree adds the threads' sums in double. A second kernel adds the parts
// by the same kind of tree. The order of a column's sum depends only on the number of rows, not on
// the columns that a thread has. Included by .cu files alone.
namespace strata::ops::cuda {

/// Rows that one thread adds in C.
inline constexpr int kSumRows = 16;
/// Threads that share a column of a part: each has every kRuns-th row.
inline constexpr int kRuns = 32;
inline constexpr std::int64_t kPartRows = std::int64_t{kRuns} * kSumRows;
/// Threads that share a row of a part, each with kWidth columns.
inline constexpr int kColumnThreads = kThreads / kRuns;

/// The rows and columns of a thread in a kernel of parts.
template <int kWidth>
struct PartThread {
  /// Columns of a block.
  static constexpr int kColumns = kColumnThreads * kWidth;

  __device__ PartThread(std::int64_t rows, std::int64_t tiles)
      : part(blockIdx.x / tiles),
        begin(blockIdx.x % tiles * kColumns),
        lane(static_cast<int>(threadIdx.x) % kColumnThreads),
        run(static_cast<int>(threadIdx.x) / kColumnThreads),
        column(begin + lane * kWidth),
        first(part * kPartRows + run) {
    const std::int64_t left = first < rows ? (rows - first + kRuns - 1) / kRuns : 0;
    count = left < kSumRows ? static_cast<int>(left) : kSumRows;
  }

  /// The thread's i-th row, 0 <= i < count.
  __device__ std::int64_t row(int i) const { return first + i * kRuns; }
  /// Place of the thread's value i in shared memory, where each run has kValues; neighbouring
  /// threads are neighbours.
  template <int kValues>
  __device__ int place(int i) const {
    return run * kValues + i * kColumnThreads + lane;
  }
  /// The column of place `at` of the first run, which holds a thread's value at / kColumnThreads.
  __device__ std::int64_t column_at(int at) const {
    return begin + at % kColumnThreads * kWidth + at / kColumnThreads % kWidth;
  }

  std::int64_t part;
  std::int64_t begin;
  int lane;
  int run;
  std::int64_t column;  ///< the first of kWidth
  std::int64_t first;   ///< the first row
  int count;
};

/// Adds kRuns runs of kValues sums into the first run, by a tree. All threads of the block call it;
/// it begins and ends with a barrier.
template <int kValues>
__device__ void add_runs(double* sums) {
  __syncthreads();
#pragma unroll
  for (int half = kRuns / 2; half > 0; half /= 2) {
#pragma unroll
    for (int begin = 0; begin < half * kValues; begin += kThreads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      if (i < half * kValues) {
        sums[i] += sums[half * kValues + i];
      }
    }
    __syncthreads();
  }
}

/// parts[part, sum, j] = a sum of column j over the rows of a part.
template <typename C, int kWidth, typename Term>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles, Term term,
                     double* parts) {
  constexpr int kOwn = Term::kSums * kWidth;
  constexpr int kValues = kOwn * kColumnThreads;
  __shared__ double sums[kRuns * kValues];
  const PartThread<kWidth> at(rows, tiles);
  C own[kOwn] = {};
  if (at.column < columns) {
    const auto add_row = term.template of_columns<kWidth>(at.column);
    if (at.count == kSumRows) {
      // Without conditions, so that many loads are in flight.
#pragma unroll
      for (int i = 0; i < kSumRows; ++i) {
        add_row(at.row(i), own);
      }
    } else {
      for (int i = 0; i < at.count; ++i) {
        add_row(at.row(i), own);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    sums[at.template place<kValues>(i)] = static_cast<double>(own[i]);
  }
  add_runs<kValues>(sums);
  for (int i = static_cast<int>(threadIdx.x); i < kValues; i += kThreads) {
    const std::int64_t column = at.column_at(i);
    if (column < columns) {
      const std::int64_t sum = i / PartThread<kWidth>::kColumns;
      parts[(at.part * Term::kSums + sum) * columns + column] = sums[i];
    }
  }
}

/// One block for kColumnThreads sums: calls store(number, column, sum over the parts) for each.
template <typename Store>
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(std::int64_t parts, std::int64_t columns, std::int64_t values,
                     const double* of_parts, Store store) {
  __shared__ double sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t value =
      static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + thread % kColumnThreads;
  double sum = 0.0;
  if (value < values) {
#pragma unroll 8
    for (std::int64_t part = thread / kColumnThreads; part < parts; part += kRuns) {
      sum += of_parts[part * values + value];
    }
  }
  sums[thread] = sum;
  add_runs<kColumnThreads>(sums);
  if (thread < kColumnThreads && value < values) {
    store(value / columns, value % columns, sums[thread]);
  }
}

/// Writes the first or second sum of a column, or adds to what is there.
template <typename C>
struct StoreSums {
  C* first;
  C* second;
  bool adds;

  __device__ void operator()(std::int64_t number, std::int64_t column, double sum) const {
    C* const to = (number == 0 ? first : second) + column;
    const C rounded = static_cast<C>(sum);
    *to = adds ? *to + rounded : rounded;
  }
};

/// What sum_over_rows_in() keeps of its parts.
template <typename Term>
std::int64_t sums_of_parts(const Rows& shape) {
  return count_of(shape.rows, kPartRows) * Term::kSums * shape.columns;
}

/// Term::kSums sums over the rows of each column. term.of_columns<kWidth>(j)(row, sums) adds the
/// row's terms of columns j, j + 1, ... to sums[kSums][kWidth]; its operands are `operands` and
/// numbers of rows or columns. `of_parts` is scratch for sums_of_parts<Term>() elements.
template <typename C, typename Term, typename Store, typename... T>
void sum_over_rows_in(Context& context, const char* name, const Rows& shape, const Term& term,
                      const Store& store, double* of_parts, const T*... operands) {
  const std::int64_t parts = count_of(shape.rows, kPartRows);
  const std::int64_t values = Term::kSums * shape.columns;
  with_width(
      shape.columns,
      [&](auto width) {
        const std::int64_t tiles = count_of(shape.columns, PartThread<width()>::kColumns);
        launch(context, name, {parts * tiles, kThreads, 0}, sum_parts_kernel<C, width(), Term>,
               shape.rows, shape.columns, tiles, term, of_parts);
      },
      operands...);
  launch(context, name, {count_of(values, kColumnThreads), kThreads, 0}, add_parts_kernel<Store>,
         parts, shape.columns, values, of_parts, store);
}

/// The same with the context's scratch.
template <typename C, typename Term, typename Store, typename... T>
void sum_over_rows(Context& context, const char* name, const Rows& shape, const Term& term,
                   const Store& store, const T*... operands) {
  double* const of_parts = scratch_of<double>(context, sums_of_parts<Term>(shape));
  sum_over_rows_in<C>(context, name, shape, term, store, of_parts, operands...);
}

}  // namespace strata::ops::cuda
