#include "strata/ops/head_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "norm/head_groups.hpp"
#include "norm/norm_rows.hpp"
#include "observed.hpp"
#include "onednn/primitive_cache.hpp"
#include "simd/column_sums.hpp"

namespace strata::ops {
namespace {

/// Calls function<offset, the type of `dtype`>().
template <typename Function>
void with_offset(WeightOffset offset, DType dtype, const Function& function) {
  with_stored(dtype, [&]<typename T>(T) {
    if (offset == WeightOffset::kZero) {
      function.template operator()<WeightOffset::kZero, T>();
    } else {
      function.template operator()<WeightOffset::kOne, T>();
    }
  });
}

/// 1 / sqrt(mean(x^2) + epsilon) of the group that begins at x.
template <typename T>
Compute<T> head_rstd(const HeadGroups& heads, const T* x, double epsilon) {
  using C = Compute<T>;
  double squares = 0.0;
  for (std::int64_t run = 0; run < heads.runs; ++run) {
    const T* const of_run = x + run * heads.stride;
    squares += simd_sum<C>(heads.count, [=](std::int64_t i) {
      const C value = static_cast<C>(of_run[i]);
      return value * value;
    });
  }
  return static_cast<C>(1.0 / std::sqrt(squares / static_cast<double>(heads.elements()) + epsilon));
}

/// y = x rstd factor for the groups of a row.
template <WeightOffset kOffset, typename T>
void norm_heads(const HeadGroups& heads, const T* x, const T* weight, double epsilon, T* y) {
  for (std::int64_t group = 0; group < heads.groups; ++group) {
    const std::int64_t column = heads.column(group);
    const Compute<T> rstd = head_rstd(heads, x + column, epsilon);
    for (std::int64_t run = 0; run < heads.runs; ++run) {
      const std::int64_t first = column + run * heads.stride;
      const auto xhat = normalised<Center::kZero>(x + first, {}, rstd);
      const auto factor = factors<kOffset>(weight + run * heads.count);
      store_terms(y + first, 0, heads.count, [=](std::int64_t i) { return xhat(i) * factor(i); });
    }
  }
}

/// From the gradient of y to that of x for the groups of a row.
template <WeightOffset kOffset, typename T>
void norm_heads_backward(const HeadGroups& heads, const T* x, const T* weight, double epsilon,
                         T* dx) {
  using C = Compute<T>;
  for (std::int64_t group = 0; group < heads.groups; ++group) {
    const std::int64_t column = heads.column(group);
    const C rstd = head_rstd(heads, x + column, epsilon);
    // Calls function(to, g, xhat) for each run.
    const auto for_each_run = [&](const auto& function) {
      for (std::int64_t run = 0; run < heads.runs; ++run) {
        const std::int64_t first = column + run * heads.stride;
        T* const to = dx + first;
        const auto factor = factors<kOffset>(weight + run * heads.count);
        function(
            to, [=](std::int64_t i) { return static_cast<C>(to[i]) * factor(i); },
            normalised<Center::kZero>(x + first, {}, rstd));
      }
    };
    double sum = 0.0;
    for_each_run([&](T*, const auto& g, const auto& xhat) {
      sum += simd_sum<C>(heads.count, [=](std::int64_t i) { return g(i) * xhat(i); });
    });
    const C mean = static_cast<C>(sum / static_cast<double>(heads.elements()));
    for_each_run([&](T* to, const auto& g, const auto& xhat) {
      store_terms(to, 0, heads.count,
                  [=](std::int64_t i) { return rstd * (g(i) - xhat(i) * mean); });
    });
  }
}

/// dweight = (or +=) the sum of dy xhat: over the rows for each element of a row, then over groups.
template <typename T>
void sum_head_weights(Context& context, const HeadGroups& heads, const Rows& shape, const T* x,
                      double epsilon, const T* dy, Accumulate accumulate,
                      const TensorView& dweight) {
  using C = Compute<T>;
  if (dweight.empty()) {
    return;
  }
  const auto [rows, width] = shape;
  const std::int64_t sums = heads.groups * heads.elements();
  C* const rstds = reinterpret_cast<C*>(context.primitives().shared(
      (rows * heads.groups + sums) * static_cast<std::int64_t>(sizeof(C))));
  C* const of_rows = rstds + rows * heads.groups;
  parallel_for_rows(
      context, rows * heads.groups, heads.elements(), [=, width = width](std::int64_t i) {
        const std::int64_t row = i / heads.groups;
        rstds[i] = head_rstd(heads, x + row * width + heads.column(i % heads.groups), epsilon);
      });
  // A tile of a run for each call, so that threads share the columns.
  constexpr std::int64_t kColumns = 128;
  const std::int64_t tiles = (heads.count + kColumns - 1) / kColumns;
  parallel_for(context, heads.groups * heads.runs * tiles, 1,
               [=, rows = rows, width = width](std::int64_t tile, std::int64_t) {
                 const std::int64_t run = tile / tiles;
                 const std::int64_t group = run / heads.runs;
                 const std::int64_t column = heads.column(group) + run % heads.runs * heads.stride;
                 const std::int64_t begin = tile % tiles * kColumns;
                 sum_columns(begin, std::min(begin + kColumns, heads.count), rows,
                             Accumulate::kOverwrite, of_rows + run * heads.count,
                             [=](std::int64_t row, std::int64_t j) {
                               const std::int64_t first = row * width + column;
                               const auto xhat = normalised<Center::kZero>(
                                   x + first, {}, rstds[row * heads.groups + group]);
                               return static_cast<C>(dy[first + j]) * xhat(j);
                             });
               });
  sum_over_rows<C>(
      context, heads.groups, heads.elements(), accumulate, dweight.host<C>().data(),
      [=](std::int64_t group, std::int64_t j) { return of_rows[group * heads.elements() + j]; });
}

void check_heads(const AttentionShape& shape, const ConstTensorView& qkv,
                 const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                 const TensorView& result) {
  require_like(qkv, qkv.dtype(), {shape.rows(), shape.qkv_width()}, "a head norm's qkv");
  require_like(result, qkv.dtype(), qkv.shape(), "a head norm's result");
  if (query_weight.count() != shape.head_size) {
    require_count(query_weight, qkv.dtype(), shape.width(), "a head norm's weight of queries");
  }
  if (key_weight.count() != shape.head_size) {
    require_count(key_weight, qkv.dtype(), shape.kv_heads * shape.head_size,
                  "a head norm's weight of keys");
  }
  require(query_weight.dtype() == qkv.dtype() && key_weight.dtype() == qkv.dtype(),
          "a head norm of {} with weights of {} and {}", name_of(qkv.dtype()),
          name_of(query_weight.dtype()), name_of(key_weight.dtype()));
}

}  // namespace

void head_norm_forward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                       const HeadNorm& norm, const TensorView& y) {
  const Observed observed(context, "head_norm_forward", qkv, query_weight, key_weight, y);
  check_heads(shape, qkv, query_weight, key_weight, y);
  if (observed.handled_by<cuda::head_norm_forward>(shape, qkv, query_weight, key_weight, norm, y)) {
    return;
  }
  const HeadGroups queries = query_groups(shape, query_weight.count());
  const HeadGroups keys = key_groups(shape, key_weight.count());
  const HeadGroups values = value_heads(shape);
  const std::int64_t width = shape.qkv_width();
  with_offset(norm.offset, qkv.dtype(), [&]<WeightOffset kOffset, typename T>() {
    const T* const of_queries = query_weight.host<T>().data();
    const T* const of_keys = key_weight.host<T>().data();
    parallel_for_rows(context, shape.rows(), width, [&](std::int64_t row) {
      const T* const from = qkv.host<T>().data() + row * width;
      T* const to = y.host<T>().data() + row * width;
      norm_heads<kOffset>(queries, from, of_queries, norm.epsilon, to);
      norm_heads<kOffset>(keys, from, of_keys, norm.epsilon, to);
      for (std::int64_t value = 0; from != to && value < values.groups; ++value) {
        std::copy_n(from + values.column(value), values.count, to + values.column(value));
      }
    });
  });
}

void head_norm_backward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                        const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                        const HeadNorm& norm, const TensorView& dqkv,
                        const TensorView& dquery_weight, const TensorView& dkey_weight,
                        Accumulate accumulate) {
  const Observed observed(context, "head_norm_backward", qkv, query_weight, key_weight, dqkv,
                          dquery_weight, dkey_weight);
  check_heads(shape, qkv, query_weight, key_weight, dqkv);
  const DType sums = compute_dtype(qkv.dtype());
  if (!dquery_weight.empty()) {
    require_count(dquery_weight, sums, query_weight.count(), "a head norm's dweight of queries");
  }
  if (!dkey_weight.empty()) {
    require_count(dkey_weight, sums, key_weight.count(), "a head norm's dweight of keys");
  }
  if (observed.handled_by<cuda::head_norm_backward>(shape, qkv, query_weight, key_weight, norm,
                                                    dqkv, dquery_weight, dkey_weight, accumulate)) {
    return;
  }
  const HeadGroups queries = query_groups(shape, query_weight.count());
  const HeadGroups keys = key_groups(shape, key_weight.count());
  const Rows rows{shape.rows(), shape.qkv_width()};
  with_offset(norm.offset, qkv.dtype(), [&]<WeightOffset kOffset, typename T>() {
    const T* const x = qkv.host<T>().data();
    T* const dx = dqkv.host<T>().data();
    sum_head_weights(context, queries, rows, x, norm.epsilon, dx, accumulate, dquery_weight);
    sum_head_weights(context, keys, rows, x, norm.epsilon, dx, accumulate, dkey_weight);
    const T* const of_queries = query_weight.host<T>().data();
    const T* const of_keys = key_weight.host<T>().data();
    parallel_for_rows(context, rows.rows, rows.columns, [&](std::int64_t row) {
      const std::int64_t first = row * rows.columns;
      norm_heads_backward<kOffset>(queries, x + first, of_queries, norm.epsilon, dx + first);
      norm_heads_backward<kOffset>(keys, x + first, of_keys, norm.epsilon, dx + first);
    });
  });
}

}  // namespace strata::ops
