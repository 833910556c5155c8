#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "norm/cuda_norm_rows.hpp"

// Gradients of a norm's weight and bias, made inside its backward pass or by themselves in the same
// order: where a row fits the registers of a warp or a block, each warp or block adds some rows in
// C, a block its warps in double, and a second kernel the blocks. The order depends only on the
// number of rows. Included by .cu files alone.
namespace strata::ops::cuda {

/// Rows that each of a block's warps, or the block, adds in C: some blocks for each multiprocessor.
inline std::int64_t rows_of_group(std::int64_t rows, std::int64_t groups) {
  constexpr std::int64_t kMostOfBlock = 128;
  constexpr std::int64_t kBlocks = 256;
  return std::clamp<std::int64_t>(count_of(rows, kBlocks * groups), 1, kMostOfBlock / groups);
}

/// Whether dx is made too.
enum class MakesInput { kNo, kYes };

/// parts[block, sum, j]: sums of dy xhat and, with two sums, of dy over a block's rows.
template <typename T, Center kCenter, int kSums, int kSize, MakesInput kInput>
__global__ void __launch_bounds__(kThreads, 1)
    norm_backward_kernel(NormBackwardInput<T, kCenter> norm, std::int64_t rows,
                         std::int64_t group_rows, double* parts) {
  using C = Compute<T>;
  constexpr int kGroups = kThreads / kSize;
  constexpr int kOwn = kRegisterChunks * kWide<T>;
  constexpr int kShared = kGroups == 1 ? 1 : kSums * kOwn * kSize;
  __shared__ double total[kShared];
  const int group = static_cast<int>(threadIdx.x) / kSize;
  const RowThreads<kSize> threads{static_cast<int>(threadIdx.x) % kSize};
  const int columns = norm.rows.columns;
  C sums[kSums * kOwn] = {};
  const auto add = [&](int k, C gradient, C normalised) {
    if (k < kOwn) {  // always, as rows fit
      sums[k] += gradient * normalised;
      if constexpr (kSums == 2) {
        sums[kOwn + k] += gradient;
      }
    }
  };
  for (std::int64_t i = 0; i < group_rows; ++i) {
    const std::int64_t row = (blockIdx.x * group_rows + i) * kGroups + group;
    if (row >= rows) {
      break;
    }
    if constexpr (kInput == MakesInput::kYes) {
      norm.backward(threads, row, add);
    } else {
      const Normalise<C> xhat = norm.rows[row];
      const RegisterRow<kSize, T> x(threads, norm.rows.x + row * columns, columns);
      const RegisterRow<kSize, T> dy(threads, norm.dy + row * columns, columns);
      for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
        const Wide<T> values = x.chunk(number, first);
        const Wide<T> gradients = dy.chunk(number, first);
#pragma unroll
        for (int e = 0; e < kWide<T>; ++e) {
          add(number * kWide<T> + e, value_of(gradients.at[e]), xhat(value_of(values.at[e])));
        }
      });
    }
  }
  double* const to = parts + static_cast<std::int64_t>(blockIdx.x) * kSums * columns;
  // Calls function(place among the sums, sum) for this thread's elements.
  const auto for_each_sum = [&](const auto& function) {
    for_each_chunk<kSize, T>(threads, columns, [&](int number, int first) {
#pragma unroll
      for (int e = 0; e < kWide<T>; ++e) {
        if (number < kRegisterChunks && first + e < columns) {
          function(first + e, static_cast<double>(sums[number * kWide<T> + e]));
          if constexpr (kSums == 2) {
            function(columns + first + e, static_cast<double>(sums[kOwn + number * kWide<T> + e]));
          }
        }
      }
    });
  };
  if constexpr (kGroups == 1) {
    for_each_sum([&](int place, double sum) { to[place] = sum; });
  } else {
    for (int turn = 0; turn < kGroups; ++turn) {
      if (turn == group) {
        for_each_sum(
            [&](int place, double sum) { total[place] = turn == 0 ? sum : total[place] + sum; });
      }
      __syncthreads();
    }
    for (int place = static_cast<int>(threadIdx.x); place < kSums * columns; place += kThreads) {
      to[place] = total[place];
    }
  }
}

/// Whether a row fits the registers.
template <typename T>
bool fits_registers(std::int64_t columns) {
  return columns <= kWarpRegisterRow<T> / kWarp * kThreads;
}

/// The gradients of weight and bias, and with MakesInput::kYes of x. `dbias` may be empty.
/// Pre: fits_registers().
template <MakesInput kInput, typename T, Center kCenter>
void norm_backward_in_registers(Context& context, const char* name, const Rows& shape,
                                const NormBackwardInput<T, kCenter>& norm,
                                const TensorView& dweight, const TensorView& dbias,
                                Accumulate accumulate) {
  using C = Compute<T>;
  const StoreSums<C> store{dweight.device<C>(), device_or_null<C>(dbias),
                           accumulate == Accumulate::kAdd};
  const auto run = [&](auto sums, auto size) {
    constexpr std::int64_t kGroups = kThreads / size();
    const std::int64_t group_rows = rows_of_group(shape.rows, kGroups);
    const std::int64_t blocks = count_of(shape.rows, kGroups * group_rows);
    const std::int64_t values = sums() * shape.columns;
    double* const parts = scratch_of<double>(context, blocks * values);
    launch(context, name, {blocks, kThreads, 0},
           norm_backward_kernel<T, kCenter, sums(), size(), kInput>, norm, shape.rows, group_rows,
           parts);
    launch(context, name, {count_of(values, kColumnThreads), kThreads, 0},
           add_parts_kernel<StoreSums<C>>, blocks, shape.columns, values, parts, store);
  };
  const auto with_size = [&](auto sums) {
    if (shape.columns <= kWarpRegisterRow<T>) {
      run(sums, std::integral_constant<int, kWarp>());
    } else {
      run(sums, std::integral_constant<int, kThreads>());
    }
  };
  if (dbias.empty()) {
    with_size(std::integral_constant<int, 1>());
  } else if constexpr (kCenter == Center::kMean) {  // RMS norm has no bias, nor kernels for it
    with_size(std::integral_constant<int, 2>());
  }
}

}  // namespace strata::ops::cuda
