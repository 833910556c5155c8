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

/// The sum of squares of the group that begins at x.
template <typename T>
double head_squares(const HeadGroups& heads, const T* x) {
  using C = Compute<T>;
  double squares = 0.0;
  for (std::int64_t run = 0; run < heads.runs; ++run) {
    const T* const of_run = x + run * heads.stride;
    squares += simd_sum<C>(heads.count, [=](std::int64_t i) {
      const C value = static_cast<C>(of_run[i]);
      return value * value;
    });
  }
  return squares;
}

/// 1 / sqrt(mean(x^2) + epsilon) of the group of `row` that begins at x.
template <typename T, typename C = Compute<T>>
C head_rstd(const HeadKind<C>& kind, std::int64_t row, const T* x) {
  const double squares = kind.squares == nullptr ? head_squares(kind.heads, x)
                                                 : static_cast<double>(kind.squares[2 * row]);
  return static_cast<C>(1.0 /
                        std::sqrt(squares / static_cast<double>(kind.elements) + kind.epsilon));
}

/// y = x rstd factor for the groups of a row.
template <WeightOffset kOffset, typename T>
void norm_heads(const HeadKind<Compute<T>>& kind, std::int64_t row, const T* x, const T* weight,
                T* y) {
  const HeadGroups& heads = kind.heads;
  for (std::int64_t group = 0; group < heads.groups; ++group) {
    const std::int64_t column = heads.column(group);
    const Compute<T> rstd = head_rstd(kind, row, x + column);
    for (std::int64_t run = 0; run < heads.runs; ++run) {
      const std::int64_t first = column + run * heads.stride;
      const auto xhat = normalised<Center::kZero>(x + first, {}, rstd);
      const auto factor = factors<kOffset>(weight + run * heads.count);
      store_terms(y + first, 0, heads.count, [=](std::int64_t i) { return xhat(i) * factor(i); });
    }
  }
}

/// Calls function(first, g, xhat) for each run of the group at `column`: its first column, and
/// functions of i for g = dy factor and for xhat.
template <WeightOffset kOffset, typename T, typename Function>
void for_each_run(const HeadGroups& heads, std::int64_t column, const T* x, const T* weight,
                  Compute<T> rstd, const T* dy, const Function& function) {
  for (std::int64_t run = 0; run < heads.runs; ++run) {
    const std::int64_t first = column + run * heads.stride;
    const T* const from = dy + first;
    const auto factor = factors<kOffset>(weight + run * heads.count);
    function(
        first, [=](std::int64_t i) { return static_cast<Compute<T>>(from[i]) * factor(i); },
        normalised<Center::kZero>(x + first, {}, rstd));
  }
}

/// The sum of g xhat of the group at `column`.
template <WeightOffset kOffset, typename T>
double head_products(const HeadGroups& heads, std::int64_t column, const T* x, const T* weight,
                     Compute<T> rstd, const T* dy) {
  double sum = 0.0;
  for_each_run<kOffset>(
      heads, column, x, weight, rstd, dy, [&](std::int64_t, const auto& g, const auto& xhat) {
        sum += simd_sum<Compute<T>>(heads.count, [=](std::int64_t i) { return g(i) * xhat(i); });
      });
  return sum;
}

/// From the gradient of y to that of x for the groups of a row.
template <WeightOffset kOffset, typename T>
void norm_heads_backward(const HeadKind<Compute<T>>& kind, std::int64_t row, const T* x,
                         const T* weight, T* dx) {
  using C = Compute<T>;
  const HeadGroups& heads = kind.heads;
  for (std::int64_t group = 0; group < heads.groups; ++group) {
    const std::int64_t column = heads.column(group);
    const C rstd = head_rstd(kind, row, x + column);
    const double sum =
        kind.products == nullptr
            ? head_products<kOffset>(heads, column, x, weight, rstd, dx)
            : static_cast<double>(rstd) * static_cast<double>(kind.products[2 * row]);
    const C mean = static_cast<C>(sum / static_cast<double>(kind.elements));
    for_each_run<kOffset>(heads, column, x, weight, rstd, dx,
                          [&](std::int64_t first, const auto& g, const auto& xhat) {
                            store_terms(dx + first, 0, heads.count, [=](std::int64_t i) {
                              return rstd * (g(i) - xhat(i) * mean);
                            });
                          });
  }
}

/// dweight = (or +=) the sum of dy xhat: over the rows for each element of a row, then over groups.
template <typename T>
void sum_head_weights(Context& context, const HeadKind<Compute<T>>& kind, const Rows& shape,
                      const T* x, const T* dy, Accumulate accumulate, const TensorView& dweight) {
  using C = Compute<T>;
  const HeadGroups& heads = kind.heads;
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
        rstds[i] = head_rstd(kind, row, x + row * width + heads.column(i % heads.groups));
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

/// One shard's part of a norm of all heads.
void check_all_heads(const AttentionShape& shape, const ConstTensorView& query_weight,
                     const ConstTensorView& key_weight) {
  require(query_weight.count() == shape.width() &&
              key_weight.count() == shape.kv_heads * shape.head_size,
          "sums of a head norm, with weights of {} and {} elements", query_weight.count(),
          key_weight.count());
}

void check_sums(const AttentionShape& shape, const ConstTensorView& qkv,
                const ConstTensorView& sums) {
  require_like(sums, compute_dtype(qkv.dtype()), {shape.rows(), 2}, "a head norm's sums");
}

void check_heads(const AttentionShape& shape, const ConstTensorView& qkv,
                 const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                 const ConstTensorView& result) {
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
                       const HeadNorm& norm, const TensorView& y, const HeadSums& sums) {
  const Observed observed(context, "head_norm_forward", qkv, query_weight, key_weight, y,
                          sums.squares);
  check_heads(shape, qkv, query_weight, key_weight, y);
  if (!sums.squares.empty()) {
    check_all_heads(shape, query_weight, key_weight);
    check_sums(shape, qkv, sums.squares);
  }
  if (observed.handled_by<cuda::head_norm_forward>(shape, qkv, query_weight, key_weight, norm, y,
                                                   sums)) {
    return;
  }
  const HeadGroups values = value_heads(shape);
  const std::int64_t width = shape.qkv_width();
  with_offset(norm.offset, qkv.dtype(), [&]<WeightOffset kOffset, typename T>() {
    using C = Compute<T>;
    const auto kinds =
        head_kinds<C>(shape, query_weight, key_weight, norm, sums,
                      [](const ConstTensorView& tensor) { return host_or_null<C>(tensor); });
    const T* const of_queries = query_weight.host<T>().data();
    const T* const of_keys = key_weight.host<T>().data();
    parallel_for_rows(context, shape.rows(), width, [&](std::int64_t row) {
      const T* const from = qkv.host<T>().data() + row * width;
      T* const to = y.host<T>().data() + row * width;
      norm_heads<kOffset>(kinds[0], row, from, of_queries, to);
      norm_heads<kOffset>(kinds[1], row, from, of_keys, to);
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
                        Accumulate accumulate, const HeadSums& sums) {
  const Observed observed(context, "head_norm_backward", qkv, query_weight, key_weight, dqkv,
                          dquery_weight, dkey_weight, sums.squares, sums.products);
  check_heads(shape, qkv, query_weight, key_weight, dqkv);
  const DType computed = compute_dtype(qkv.dtype());
  if (!dquery_weight.empty()) {
    require_count(dquery_weight, computed, query_weight.count(),
                  "a head norm's dweight of queries");
  }
  if (!dkey_weight.empty()) {
    require_count(dkey_weight, computed, key_weight.count(), "a head norm's dweight of keys");
  }
  if (!sums.squares.empty()) {
    check_all_heads(shape, query_weight, key_weight);
    check_sums(shape, qkv, sums.squares);
    check_sums(shape, qkv, sums.products);
  }
  if (observed.handled_by<cuda::head_norm_backward>(shape, qkv, query_weight, key_weight, norm,
                                                    dqkv, dquery_weight, dkey_weight, accumulate,
                                                    sums)) {
    return;
  }
  const Rows rows{shape.rows(), shape.qkv_width()};
  with_offset(norm.offset, qkv.dtype(), [&]<WeightOffset kOffset, typename T>() {
    using C = Compute<T>;
    const auto kinds =
        head_kinds<C>(shape, query_weight, key_weight, norm, sums,
                      [](const ConstTensorView& tensor) { return host_or_null<C>(tensor); });
    const T* const x = qkv.host<T>().data();
    T* const dx = dqkv.host<T>().data();
    sum_head_weights(context, kinds[0], rows, x, dx, accumulate, dquery_weight);
    sum_head_weights(context, kinds[1], rows, x, dx, accumulate, dkey_weight);
    const T* const of_queries = query_weight.host<T>().data();
    const T* const of_keys = key_weight.host<T>().data();
    parallel_for_rows(context, rows.rows, rows.columns, [&](std::int64_t row) {
      const std::int64_t first = row * rows.columns;
      norm_heads_backward<kOffset>(kinds[0], row, x + first, of_queries, dx + first);
      norm_heads_backward<kOffset>(kinds[1], row, x + first, of_keys, dx + first);
    });
  });
}

void head_norm_squares(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const TensorView& squares) {
  const Observed observed(context, "head_norm_squares", qkv, squares);
  require_like(qkv, qkv.dtype(), {shape.rows(), shape.qkv_width()}, "a head norm's qkv");
  check_sums(shape, qkv, squares);
  if (observed.handled_by<cuda::head_norm_squares>(shape, qkv, squares)) {
    return;
  }
  const HeadGroups queries = all_queries(shape);
  const HeadGroups keys = all_keys(shape);
  with_stored(qkv.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const x = qkv.host<T>().data();
    C* const to = squares.host<C>().data();
    parallel_for_rows(context, shape.rows(), shape.qkv_width(), [&](std::int64_t row) {
      const T* const from = x + row * shape.qkv_width();
      to[2 * row] = static_cast<C>(head_squares(queries, from + queries.column(0)));
      to[2 * row + 1] = static_cast<C>(head_squares(keys, from + keys.column(0)));
    });
  });
}

void head_norm_products(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                        const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                        const HeadNorm& norm, const ConstTensorView& dqkv,
                        const TensorView& products) {
  const Observed observed(context, "head_norm_products", qkv, query_weight, key_weight, dqkv,
                          products);
  check_heads(shape, qkv, query_weight, key_weight, dqkv);
  check_all_heads(shape, query_weight, key_weight);
  check_sums(shape, qkv, products);
  if (observed.handled_by<cuda::head_norm_products>(shape, qkv, query_weight, key_weight, norm,
                                                    dqkv, products)) {
    return;
  }
  const HeadGroups queries = all_queries(shape);
  const HeadGroups keys = all_keys(shape);
  with_offset(norm.offset, qkv.dtype(), [&]<WeightOffset kOffset, typename T>() {
    using C = Compute<T>;
    const T* const of_queries = query_weight.host<T>().data();
    const T* const of_keys = key_weight.host<T>().data();
    C* const to = products.host<C>().data();
    parallel_for_rows(context, shape.rows(), shape.qkv_width(), [&](std::int64_t row) {
      const T* const x = qkv.host<T>().data() + row * shape.qkv_width();
      const T* const dy = dqkv.host<T>().data() + row * shape.qkv_width();
      // xhat is x with a deviation of 1.
      to[2 * row] = static_cast<C>(
          head_products<kOffset>(queries, queries.column(0), x, of_queries, C{1}, dy));
      to[2 * row + 1] =
          static_cast<C>(head_products<kOffset>(keys, keys.column(0), x, of_keys, C{1}, dy));
    });
  });
}

}  // namespace strata::ops
