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

/// The queries or the keys of all rows.
template <typename T>
struct RowKind {
  using C = Compute<T>;

  HeadKind<C> kind;
  RowGroups groups;
  const T* x;

  /// The sum of squares of the group that begins at `from`; the same bits in each thread.
  template <int kSize>
  __device__ double squares(const RowThreads<kSize>& threads, const T* from) const {
    C part{0};
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int, int left) {
      const Wide<T> values = operand_at(from + at, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        part = fused(value_of(values.at[i]), value_of(values.at[i]), part);
      }
    });
    return threads.sum(static_cast<double>(part));
  }
  /// The normalised elements of a group; the same bits in each thread.
  template <int kSize>
  __device__ Normalise<C> normalised(const RowThreads<kSize>& threads, std::int64_t index) const {
    // A group whose sums are given is a row.
    const double sum = kind.squares == nullptr ? squares(threads, x + groups.begin(index))
                                               : static_cast<double>(kind.squares[2 * index]);
    const double mean = sum / static_cast<double>(kind.elements);
    return {C{0}, static_cast<C>(1.0 / sqrt(mean + kind.epsilon))};
  }
};

/// y = xhat factor.
template <typename T>
struct HeadForward {
  RowKind<T> rows;
  const T* weight;
  WeightOffset offset;
  T* y;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    const RowGroups& groups = rows.groups;
    const T* const from = rows.x + groups.begin(index);
    T* const to = y + groups.begin(index);
    const Normalise<Compute<T>> xhat = rows.normalised(threads, index);
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int in_weight, int left) {
      Wide<T> values = operand_at(from + at, left, 0);
      const Wide<T> weights = operand_at(weight + in_weight, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        values.at[i] = to_storage<T>(xhat(value_of(values.at[i])) *
                                     factor_of(value_of(weights.at[i]), offset));
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

/// The sums of squares of groups.
template <typename T>
struct HeadSquares {
  RowKind<T> rows;
  Compute<T>* sums;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    const double sum = rows.squares(threads, rows.x + rows.groups.begin(index));
    if (threads.lane == 0) {
      sums[2 * index] = static_cast<Compute<T>>(sum);
    }
  }
};

/// What backward reads: g = dy factor.
template <typename T>
struct HeadGradient {
  using C = Compute<T>;

  RowKind<T> rows;
  const T* weight;
  WeightOffset offset;
  const T* dy;

  /// The sum of g xhat of a group; the same bits in each thread.
  template <int kSize>
  __device__ double products(const RowThreads<kSize>& threads, std::int64_t index,
                             const Normalise<C>& xhat) const {
    const RowGroups& groups = rows.groups;
    const std::int64_t begin = groups.begin(index);
    C part{0};
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int in_weight, int left) {
      const Wide<T> values = operand_at(rows.x + begin + at, left, 0);
      const Wide<T> gradients = operand_at(dy + begin + at, left, 0);
      const Wide<T> weights = operand_at(weight + in_weight, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C g = value_of(gradients.at[i]) * factor_of(value_of(weights.at[i]), offset);
        part = fused(g, xhat(value_of(values.at[i])), part);
      }
    });
    return threads.sum(static_cast<double>(part));
  }
};

/// The sums of g x of groups.
template <typename T>
struct HeadProducts {
  HeadGradient<T> gradient;
  Compute<T>* sums;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    using C = Compute<T>;
    const double sum = gradient.products(threads, index, {C{0}, C{1}});
    if (threads.lane == 0) {
      sums[2 * index] = static_cast<C>(sum);
    }
  }
};

/// dx = rstd (g - xhat mean(g xhat)); dx is dy.
template <typename T>
struct HeadBackward {
  HeadGradient<T> gradient;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    using C = Compute<T>;
    const RowKind<T>& rows = gradient.rows;
    const RowGroups& groups = rows.groups;
    const T* const from = rows.x + groups.begin(index);
    T* const to = dx + groups.begin(index);
    const Normalise<C> xhat = rows.normalised(threads, index);
    const double sum =
        rows.kind.products == nullptr
            ? gradient.products(threads, index, xhat)
            : static_cast<double>(xhat.rstd) * static_cast<double>(rows.kind.products[2 * index]);
    const C mean = static_cast<C>(sum / static_cast<double>(rows.kind.elements));
    groups.for_each_chunk<T>(threads, [&](std::int64_t at, int in_weight, int left) {
      const Wide<T> values = operand_at(from + at, left, 0);
      const Wide<T> weights = operand_at(gradient.weight + in_weight, left, 0);
      Wide<T> gradients = operand_at(to + at, left, 0);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const C g = value_of(gradients.at[i]) * factor_of(value_of(weights.at[i]), gradient.offset);
        gradients.at[i] = to_storage<T>(xhat.rstd * (g - xhat(value_of(values.at[i])) * mean));
      }
      store_chunk(to + at, left, 0, gradients);
    });
  }
};

template <typename T>
struct HeadStatistics {
  RowKind<T> rows;
  Compute<T>* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    const Normalise<Compute<T>> xhat = rows.normalised(threads, index);
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

/// Queries, then keys.
template <typename T>
std::array<RowKind<T>, 2> row_kinds(const AttentionShape& shape, const ConstTensorView& qkv,
                                    const ConstTensorView& query_weight,
                                    const ConstTensorView& key_weight, const HeadNorm& norm = {},
                                    const HeadSums& sums = {}) {
  using C = Compute<T>;
  const auto [queries, keys] =
      head_kinds<C>(shape, query_weight, key_weight, norm, sums,
                    [](const ConstTensorView& tensor) { return device_or_null<C>(tensor); });
  const auto rows = [&](const HeadKind<C>& kind) {
    return RowKind<T>{kind, {kind.heads, shape.qkv_width()}, qkv.device<T>()};
  };
  return {rows(queries), rows(keys)};
}

/// `dweight` may be empty.
template <typename T>
void sum_head_weights(Context& context, const AttentionShape& shape, const RowKind<T>& of,
                      const T* dy, Accumulate accumulate, const TensorView& dweight) {
  using C = Compute<T>;
  using Term = HeadWeightTerm<T>;
  if (dweight.empty()) {
    return;
  }
  constexpr const char* kName = "head_norm_backward";
  const HeadGroups& heads = of.groups.heads;
  const Rows rows{shape.rows() * heads.groups, heads.elements()};
  // Sums of parts, then statistics.
  const std::int64_t sums = sums_of_parts<Term>(rows);
  double* const of_parts = scratch_of<double>(context, sums + rows.rows);
  C* const rstds = reinterpret_cast<C*>(of_parts + sums);
  for_each_group(context, kName, shape, heads, HeadStatistics<T>{of, rstds});
  // The third operand has the alignment of every head.
  sum_over_rows_in<C>(context, kName, rows, Term{of.groups, of.x, dy, rstds},
                      StoreSums<C>{dweight.device<C>(), nullptr, accumulate == Accumulate::kAdd},
                      of_parts, of.x, dy, of.x + shape.head_size);
}

}  // namespace

void head_norm_forward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                       const HeadNorm& norm, const TensorView& y, const HeadSums& sums) {
  constexpr const char* kName = "head_norm_forward";
  with_device_type(qkv.dtype(), [&]<typename T>(T) {
    T* const to = y.device<T>();
    const auto kinds = row_kinds<T>(shape, qkv, query_weight, key_weight, norm, sums);
    const auto run = [&](const RowKind<T>& rows, const ConstTensorView& weight) {
      for_each_group(context, kName, shape, rows.groups.heads,
                     HeadForward<T>{rows, weight.device<T>(), norm.offset, to});
    };
    run(kinds[0], query_weight);
    run(kinds[1], key_weight);
    if (const T* const x = qkv.device<T>(); to != x) {
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
                        Accumulate accumulate, const HeadSums& sums) {
  with_device_type(qkv.dtype(), [&]<typename T>(T) {
    T* const dx = dqkv.device<T>();
    const auto kinds = row_kinds<T>(shape, qkv, query_weight, key_weight, norm, sums);
    const auto run = [&](const RowKind<T>& rows, const ConstTensorView& weight,
                         const TensorView& dweight) {
      // In place: the sums read what the gradient of qkv overwrites.
      sum_head_weights<T>(context, shape, rows, dx, accumulate, dweight);
      for_each_group(context, "head_norm_backward", shape, rows.groups.heads,
                     HeadBackward<T>{{rows, weight.device<T>(), norm.offset, dx}, dx});
    };
    run(kinds[0], query_weight, dquery_weight);
    run(kinds[1], key_weight, dkey_weight);
  });
}

void head_norm_squares(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const TensorView& squares) {
  with_device_type(qkv.dtype(), [&]<typename T>(T) {
    const auto run = [&](const HeadGroups& heads, std::int64_t place) {
      const RowKind<T> rows{{.heads = heads}, {heads, shape.qkv_width()}, qkv.device<T>()};
      for_each_group(context, "head_norm_squares", shape, heads,
                     HeadSquares<T>{rows, squares.device<Compute<T>>() + place});
    };
    run(all_queries(shape), 0);
    run(all_keys(shape), 1);
  });
}

void head_norm_products(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                        const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                        const HeadNorm& norm, const ConstTensorView& dqkv,
                        const TensorView& products) {
  with_device_type(qkv.dtype(), [&]<typename T>(T) {
    const auto kinds = row_kinds<T>(shape, qkv, query_weight, key_weight, norm);
    const auto run = [&](const RowKind<T>& rows, const ConstTensorView& weight,
                         std::int64_t place) {
      for_each_group(context, "head_norm_products", shape, rows.groups.heads,
                     HeadProducts<T>{{rows, weight.device<T>(), norm.offset, dqkv.device<T>()},
                                     products.device<Compute<T>>() + place});
    };
    run(kinds[0], query_weight, 0);
    run(kinds[1], key_weight, 1);
  });
}

}  // namespace strata::ops::cuda
