#pragma once

#include <cstdint>

#include "strata/ops/row_norm.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/column_sums.hpp"
#include "cuda/rows.hpp"

// Layer norm and RMS norm on GPUs: both scale a row to unit deviation, measured from its mean or
// from zero; norm_rows.hpp does the same on the CPU. Here is what they do with a row. With
// Center::kZero `means` is null and not read. Included by .cu files alone.
namespace strata::ops::cuda {

/// The normalised element xhat.
template <typename C>
struct Normalise {
  C mean;
  C rstd;

  __device__ C operator()(C x) const { return (x - mean) * rstd; }
};

/// The normalised rows.
template <typename T, Center kCenter>
struct Normalised {
  using C = Compute<T>;

  const T* x;
  const C* means;
  const C* rstds;
  int columns;

  __device__ Normalise<C> operator[](std::int64_t row) const {
    return {kCenter == Center::kMean ? means[row] : C{0}, rstds[row]};
  }
};

/// Elements [first, first + kWide) of weight, bias or an addend.
template <typename T>
__device__ Wide<T> operand_at(const T* row, int columns, int first) {
  return chunk_at(row, columns, first, to_storage<T>(Compute<T>{0}));
}

/// The factor of xhat: an element of the weight, or one more.
template <typename C>
__device__ C factor_of(C weight, WeightOffset offset) {
  return offset == WeightOffset::kOne ? C{1} + weight : weight;
}

/// y = xhat factor + bias. `bias` may be null.
template <typename T, Center kCenter>
struct NormForward {
  using C = Compute<T>;

  const T* x;
  const T* weight;
  const T* bias;
  double epsilon;
  WeightOffset offset;
  int columns;
  T* y;
  C* means;
  C* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    const RegisterRow<kSize, T> from(threads, x + row * columns, columns);
    const double count = static_cast<double>(columns);
    C mean{0};
    if constexpr (kCenter == Center::kMean) {
      // A second pass: the difference of two large sums would lose the variance of a narrow row.
      C part{0};
      for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
        const Wide<T> chunk = from.chunk(number, first);
#pragma unroll
        for (int i = 0; i < kWide<T>; ++i) {
          part += value_of(chunk.at[i]);
        }
      });
      mean = static_cast<C>(threads.sum(static_cast<double>(part)) / count);
    }
    C part{0};
    for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
      const Wide<T> chunk = from.chunk(number, first);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C difference = first + i < columns ? value_of(chunk.at[i]) - mean : C{0};
        part = fused(difference, difference, part);
      }
    });
    const double variance = threads.sum(static_cast<double>(part)) / count;
    const Normalise<C> xhat{mean, static_cast<C>(1.0 / sqrt(variance + epsilon))};
    if (threads.lane == 0) {
      rstds[row] = xhat.rstd;
      if constexpr (kCenter == Center::kMean) {
        means[row] = mean;
      }
    }
    for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
      Wide<T> chunk = from.chunk(number, first);
      const Wide<T> weights = operand_at(weight, columns, first);
      const Wide<T> biases = bias == nullptr ? weights : operand_at(bias, columns, first);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C factor = factor_of(value_of(weights.at[i]), offset);
        const C scaled = xhat(value_of(chunk.at[i])) * factor;
        chunk.at[i] = to_storage<T>(bias == nullptr ? scaled : scaled + value_of(biases.at[i]));
      }
      store_chunk(y + row * columns, columns, first, chunk);
    });
  }
};

/// dx = addend + rstd (g - mean(g) - xhat mean(g xhat)), where g = dy factor; Center::kZero leaves
/// mean(g) out. `addend` may be null; dx may be dy or `addend`.
template <typename T, Center kCenter>
struct NormBackwardInput {
  using C = Compute<T>;

  Normalised<T, kCenter> rows;
  const T* weight;
  WeightOffset offset;
  const T* dy;
  const T* addend;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t row) const {
    backward(threads, row, [](int, C, C) {});
  }

  /// term(k, dy, xhat) is called for each of this thread's elements, its k-th of the row.
  template <int kSize, typename EachElement>
  __device__ void backward(const RowThreads<kSize>& threads, std::int64_t row,
                           const EachElement& term) const {
    const int columns = rows.columns;
    const double count = static_cast<double>(columns);
    const RegisterRow<kSize, T> x(threads, rows.x + row * columns, columns);
    const RegisterRow<kSize, T> gradient(threads, dy + row * columns, columns);
    const Normalise<C> xhat = rows[row];
    C part{0};
    C part_xhat{0};
    for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
      const Wide<T> values = x.chunk(number, first);
      const Wide<T> gradients = gradient.chunk(number, first);
      const Wide<T> weights = operand_at(weight, columns, first);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C normalised = xhat(value_of(values.at[i]));
        const C g = value_of(gradients.at[i]) * factor_of(value_of(weights.at[i]), offset);
        part += g;
        part_xhat = fused(g, normalised, part_xhat);
        term(number * kWide<T> + i, value_of(gradients.at[i]), normalised);
      }
    });
    C mean_g{0};
    if constexpr (kCenter == Center::kMean) {
      mean_g = static_cast<C>(threads.sum(static_cast<double>(part)) / count);
    }
    const C mean_g_xhat = static_cast<C>(threads.sum(static_cast<double>(part_xhat)) / count);
    for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
      const Wide<T> values = x.chunk(number, first);
      const Wide<T> gradients = gradient.chunk(number, first);
      const Wide<T> weights = operand_at(weight, columns, first);
      Wide<T> to = addend == nullptr ? weights : operand_at(addend + row * columns, columns, first);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C g = value_of(gradients.at[i]) * factor_of(value_of(weights.at[i]), offset);
        const C result = xhat.rstd * (g - mean_g - xhat(value_of(values.at[i])) * mean_g_xhat);
        to.at[i] = to_storage<T>(addend == nullptr ? result : value_of(to.at[i]) + result);
      }
      store_chunk(dx + row * columns, columns, first, to);
    });
  }
};

}  // namespace strata::ops::cuda
