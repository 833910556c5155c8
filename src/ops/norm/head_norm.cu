#include <cstdint>

#include "strata/ops/head_norm.hpp"

#include "cuda/ops.hpp"
#include "norm/cuda_norm_rows.hpp"
#include "norm/head_groups.hpp"

namespace strata::ops::cuda {
namespace {

/// The groups of all rows of qkv or its gradient. Each is a "row" of for_each_row().
struct RowGroups {
  HeadGroups heads;
  std::int64_t width;  ///< of a row of qkv

  /// The place of a group's first element.
  __device__ std::int64_t begin(std::int64_t index) const {
    return index / heads.groups * width + heads.column(index % heads.groups);
  }
  /// Calls function(at, in_weight, left) for this thread's chunks of T: `at` elements after the
  /// group's first, `in_weight` after its weight's; the run of the chunk has `left` more elements.
  template <typename T, int kSize, typename Function>
  __device__ void for_each_chunk(const RowThreads<kSize>& threads, const Function& function) const {
    const int count = static_cast<int>(heads.count);
    const int chunks = static_cast<int>(count_of(count, kWide<T>));
    threads.for_each(heads.runs * chunks, [&](std::int64_t i) {
      const int run = static_cast<int>(i) / chunks;
      const int first = static_cast<int>(i) % chunks * kWide<T>;
      function(run * heads.stride + first, run * count + first, count - first);
    });
  }
};

/// The normalised elements of the group that begins at x; the same bits in each thread.
template <typename T, int kSize>
__device__ Normalise<Compute<T>> normalised_group(const RowThreads<kSize>& threads,
                                                  const RowGroups& groups, const T* x,
                                                  double epsilon) {
  using C = Compute<T>;
  C part{0};
  groups.for_each_chunk<T>(threads, [&](std::int64_t at, int, int left) {
    const Wide<T> values = operand_at(x + at, left, 0);
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) {
      part = fused(value_of(values.at[i]), value_of(values.at[i]), part);
    }
  });
  const double squares = threads.sum(static_cast<double>(part));
  const double mean = squares / static_cast<double>(groups.heads.elements());
  return {C{0}, static_cast<C>(1.0 / sqrt(mean + epsilon))};
}

/// y = xhat factor.
template <typename T>
struct HeadForward {
  RowGroups groups;
  const T* x;
  const T* weight;
  HeadNorm norm;
  T* y;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    const T* const from = x + groups.begin(index);
    T* const to = y + groups.begin(index);
    const Normalise<Compute<T>> xhat = normalised_group(threads, groups, from, norm.epsilon);
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int in_weight, int left) {
      Wide<T> values = operand_at(from + at, left, 0);
      const Wide<T> weights = operand_at(weight + in_weight, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        values.at[i] = to_storage<T>(xhat(value_of(values.at[i])) *
                                     factor_of(value_of(weights.at[i]), norm.offset));
      }
      store_chunk(to + at, left, 0, values);
    });
  }
};

/// y = x.
template <typename T>
struct HeadCopy {
  RowGroups groups;
  const T* x;
  T* y;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    const std::int64_t begin = groups.begin(index);
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int, int left) {
      store_chunk(y + begin + at, left, 0, operand_at(x + begin + at, left, 0));
    });
  }
};

/// dx = rstd (g - xhat mean(g xhat)), where g = dx factor.
template <typename T>
struct HeadBackward {
  RowGroups groups;
  const T* x;
  const T* weight;
  HeadNorm norm;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    using C = Compute<T>;
    const T* const from = x + groups.begin(index);
    T* const to = dx + groups.begin(index);
    const Normalise<C> xhat = normalised_group(threads, groups, from, norm.epsilon);
    C part{0};
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int in_weight, int left) {
      const Wide<T> values = operand_at(from + at, left, 0);
      const Wide<T> gradients = operand_at(to + at, left, 0);
      const Wide<T> weights = operand_at(weight + in_weight, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C g = value_of(gradients.at[i]) * factor_of(value_of(weights.at[i]), norm.offset);
        part = fused(g, xhat(value_of(values.at[i])), part);
      }
    });
    const C mean = static_cast<C>(threads.sum(static_cast<double>(part)) /
                                  static_cast<double>(groups.heads.elements()));
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int in_weight, int left) {
      const Wide<T> values = operand_at(from + at, left, 0);
      const Wide<T> weights = operand_at(weight + in_weight, left, 0);
      Wide<T> gradients = operand_at(to + at, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C g = value_of(gradients.at[i]) * factor_of(value_of(weights.at[i]), norm.offset);
        gradients.at[i] = to_storage<T>(xhat.rstd * (g - xhat(value_of(values.at[i])) * mean));
      }
      store_chunk(to + at, left, 0, gradients);
    });
  }
};

template <typename T>
struct HeadStatistics {
  RowGroups groups;
  const T* x;
  double epsilon;
  Compute<T>* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    const auto xhat = normalised_group(threads, groups, x + groups.begin(index), epsilon);
    if (threads.lane == 0) {
      rstds[index] = xhat.rstd;
    }
  }
};

/// dy xhat, whose sum over groups is the gradient of the weight.
template <typename T>
struct HeadWeightTerm {
  static constexpr int kSums = 1;

  RowGroups groups;
  const T* x;
  const T* dy;
  const Compute<T>* rstds;

  template <int kWidth>
  __device__ auto of_columns(std::int64_t j) const {
    const HeadGroups& heads = groups.heads;
    return [of = *this, after = j / heads.count * heads.stride + j % heads.count](
               std::int64_t index, Compute<T>* sums) {
      const std::int64_t at = of.groups.begin(index) + after;
      const auto values = elements_at<kWidth>(of.x + at);
      const auto gradients = elements_at<kWidth>(of.dy + at);
      const Normalise<Compute<T>> xhat{Compute<T>{0}, of.rstds[index]};
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sums[i] += value_of(gradients.at[i]) * xhat(value_of(values.at[i]));
      }
    };
  }
};

template <typename Function>
void for_each_group(Context& context, const char* name, const AttentionShape& shape,
                    const HeadGroups& heads, const Function& function) {
  for_each_row(context, name, shape.rows() * heads.groups, heads.elements(), function);
}

/// `dweight` may be empty.
template <typename T>
void sum_head_weights(Context& context, const AttentionShape& shape, const RowGroups& groups,
                      const T* x, double epsilon, const T* dy, Accumulate accumulate,
                      const TensorView& dweight) {
  using C = Compute<T>;
  using Term = HeadWeightTerm<T>;
  if (dweight.empty()) {
    return;
  }
  constexpr const char* kName = "head_norm_backward";
  const Rows rows{shape.rows() * groups.heads.groups, groups.heads.elements()};
  // Sums of parts, then statistics.
  const std::int64_t sums = sums_of_parts<Term>(rows);
  double* const of_parts = scratch_of<double>(context, sums + rows.rows);
  C* const rstds = reinterpret_cast<C*>(of_parts + sums);
  for_each_group(context, kName, shape, groups.heads, HeadStatistics<T>{groups, x, epsilon, rstds});
  // The third operand has the alignment of every head.
  sum_over_rows_in<C>(context, kName, rows, Term{groups, x, dy, rstds},
                      StoreSums<C>{dweight.device<C>(), nullptr, accumulate == Accumulate::kAdd},
                      of_parts, x, dy, x + shape.head_size);
}

}  // namespace

void head_norm_forward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                       const HeadNorm& norm, const TensorView& y) {
  constexpr const char* kName = "head_norm_forward";
  with_device_type(qkv.dtype(), [&]<typename T>(T) {
    const T* const x = qkv.device<T>();
    T* const to = y.device<T>();
    const auto run = [&](const HeadGroups& heads, const ConstTensorView& weight) {
      for_each_group(context, kName, shape, heads,
                     HeadForward<T>{{heads, shape.qkv_width()}, x, weight.device<T>(), norm, to});
    };
    run(query_groups(shape, query_weight.count()), query_weight);
    run(key_groups(shape, key_weight.count()), key_weight);
    if (to != x) {
      const HeadGroups values = value_heads(shape);
      for_each_group(context, kName, shape, values,
                     HeadCopy<T>{{values, shape.qkv_width()}, x, to});
    }
  });
}

void head_norm_backward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                        const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                        const HeadNorm& norm, const TensorView& dqkv,
                        const TensorView& dquery_weight, const TensorView& dkey_weight,
                        Accumulate accumulate) {
  with_device_type(qkv.dtype(), [&]<typename T>(T) {
    const T* const x = qkv.device<T>();
    T* const dx = dqkv.device<T>();
    const auto run = [&](const HeadGroups& heads, const ConstTensorView& weight,
                         const TensorView& dweight) {
      const RowGroups groups{heads, shape.qkv_width()};
      // In place: the sums read what the gradient of qkv overwrites.
      sum_head_weights<T>(context, shape, groups, x, norm.epsilon, dx, accumulate, dweight);
      for_each_group(context, "head_norm_backward", shape, heads,
                     HeadBackward<T>{groups, x, weight.device<T>(), norm, dx});
    };
    run(query_groups(shape, query_weight.count()), query_weight, dquery_weight);
    run(key_groups(shape, key_weight.count()), key_weight, dkey_weight);
  });
}

}  // namespace strata::ops::cuda
