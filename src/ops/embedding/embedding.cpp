#include "strata/ops/embedding.hpp"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/elementwise.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "embedding/pieces.hpp"
#include "observed.hpp"
#include "simd/column_sums.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

/// to = (or +=) from + 0.
template <typename T, typename To>
void look_up_row(const T* from, std::int64_t n, Accumulate accumulate, To* to) {
  using C = Compute<T>;
  // NOLINTNEXTLINE(bugprone-branch-clone): the branches differ by the addition.
  if (accumulate == Accumulate::kAdd) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = to_storage<To>(static_cast<C>(to[i]) + static_cast<C>(from[i]));
    }
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = to_storage<To>(static_cast<C>(from[i]) + C{0});
    }
  }
}

/// out = (or +=) x[row_of(0)] + x[row_of(1)] + ..., in order.
template <typename T, typename Function>
void sum_rows(const T* x, std::int64_t n, std::int64_t count, const Function& row_of,
              Accumulate accumulate, Compute<T>* out) {
  using C = Compute<T>;
  for (std::int64_t begin = 0; begin < n; begin += kSumColumns) {
    sum_columns(
        begin, std::min(begin + kSumColumns, n), count, accumulate, out,
        [&](std::int64_t i, std::int64_t j) { return static_cast<C>(x[row_of(i) * n + j]); });
  }
}

/// A row of a table and the row of y or dy that goes with it.
using TableRow = std::pair<std::int64_t, std::int64_t>;

/// The rows whose id is in the table, sorted by id, then by row.
std::vector<TableRow> rows_by_id(std::span<const std::int64_t> ids, std::int64_t first_id,
                                 std::int64_t table_rows) {
  std::vector<TableRow> rows;
  rows.reserve(ids.size());
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const std::int64_t id = ids[row] - first_id;
    if (id >= 0 && id < table_rows) {
      rows.emplace_back(id, static_cast<std::int64_t>(row));
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

/// The start of each id's rows, then the number of rows.
std::vector<std::int64_t> beginnings(const std::vector<TableRow>& rows) {
  std::vector<std::int64_t> begins;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].first != rows[i - 1].first) {
      begins.push_back(static_cast<std::int64_t>(i));
    }
  }
  begins.push_back(static_cast<std::int64_t>(rows.size()));
  return begins;
}

void check_table(const ConstTensorView& table, std::int64_t columns, std::string_view name) {
  require(table.shape().rank() == 2 && table.shape()[1] == columns,
          "{} is {}, {} columns were expected", name, table.shape().text(), columns);
}

/// The number of table rows that `rows` rows use.
std::int64_t positions_reached(const PositionRows& positions, std::int64_t rows) {
  const std::int64_t first = positions.first_row % positions.tokens;
  return positions.offset + std::min(positions.tokens, first + rows);
}

}  // namespace

void embedding_forward(Context& context, const ConstTensorView& ids, const ConstTensorView& table,
                       std::int64_t first_id, const TensorView& y, Accumulate accumulate) {
  const Observed observed(context, "embedding_forward", y, y, ids);
  const auto [rows, n] = rows_of(y.shape());
  require_count(ids, DType::kInt64, rows, "an embedding's ids");
  check_table(table, n, "an embedding's table");
  require(y.dtype() == table.dtype() || y.dtype() == compute_dtype(table.dtype()),
          "an embedding of {} into {}", name_of(table.dtype()), name_of(y.dtype()));
  if (observed.handled_by<cuda::embedding_forward>(ids, table, first_id, y, accumulate)) {
    return;
  }
  const std::int64_t table_rows = table.shape()[0];
  const std::int64_t* id = ids.host<std::int64_t>().data();
  with_stored(table.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* from = table.host<T>().data();
    with_elements<T>(y, [&]<typename To>(To* to) {
      parallel_for_rows(context, rows, n, [=](std::int64_t row) {
        const std::int64_t at = id[row] - first_id;
        if (at >= 0 && at < table_rows) {
          look_up_row(from + at * n, n, accumulate, to + row * n);
        } else if (accumulate == Accumulate::kOverwrite) {
          std::fill_n(to + row * n, n, To{});
        }
      });
    });
  });
}

void embedding_backward(Context& context, const ConstTensorView& ids, const ConstTensorView& dy,
                        std::int64_t first_id, const TensorView& dtable, Accumulate accumulate) {
  const Observed observed(context, "embedding_backward", dy, dtable, ids);
  const auto [rows, n] = rows_of(dy.shape());
  require_count(ids, DType::kInt64, rows, "an embedding's ids");
  check_table(dtable, n, "an embedding's dtable");
  require_count(dtable, compute_dtype(dy.dtype()), dtable.count(), "an embedding's dtable");
  if (accumulate == Accumulate::kOverwrite) {
    fill_zero(context, dtable);
  }
  if (observed.handled_by<cuda::embedding_backward>(ids, dy, first_id, dtable, accumulate)) {
    return;
  }
  const std::vector<TableRow> sorted =
      rows_by_id(ids.host<std::int64_t>(), first_id, dtable.shape()[0]);
  const std::vector<std::int64_t> begins = beginnings(sorted);
  const auto distinct = static_cast<std::int64_t>(begins.size()) - 1;
  with_stored(dy.dtype(), [&, n = n]<typename T>(T) {
    const T* from = dy.host<T>().data();
    Compute<T>* to = dtable.host<Compute<T>>().data();
    parallel_for_rows(context, distinct, n, [&](std::int64_t i) {
      const auto index = static_cast<std::size_t>(i);
      const std::int64_t end = begins[index + 1];
      Accumulate of_piece = accumulate;
      for (std::int64_t begin = begins[index]; begin < end; begin += kEmbeddingPieceRows) {
        const TableRow* const first = sorted.data() + begin;
        sum_rows(
            from, n, std::min<std::int64_t>(kEmbeddingPieceRows, end - begin),
            [=](std::int64_t row) { return first[row].second; }, of_piece, to + first->first * n);
        of_piece = Accumulate::kAdd;
      }
    });
  });
}

void add_positions(Context& context, const ConstTensorView& x, const ConstTensorView& table,
                   const PositionRows& positions, const TensorView& y) {
  const Observed observed(context, "add_positions", x, table, y);
  const auto [rows, n] = rows_of(y.shape());
  require_count(x, x.dtype() == y.dtype() ? y.dtype() : compute_dtype(y.dtype()), y.count(),
                "the x of positions");
  check_table(table, n, "a table of positions");
  require_count(table, y.dtype(), table.count(), "a table of positions");
  require(positions.tokens >= 1 && positions.first_row >= 0 && positions.offset >= 0 &&
              positions_reached(positions, rows) <= table.shape()[0],
          "{} rows of sequences of {} tokens from position {} on and a table of {}", rows,
          positions.tokens, positions.offset, table.shape().text());
  if (observed.handled_by<cuda::add_positions>(x, table, positions, y)) {
    return;
  }
  with_stored(y.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const T* rows_of_table = table.host<T>().data();
    T* to = y.host<T>().data();
    with_elements<T>(x, [&]<typename From>(const From* from) {
      parallel_for_rows(context, rows, n, [=](std::int64_t row) {
        const std::int64_t token = (positions.first_row + row) % positions.tokens;
        const T* position = rows_of_table + (token + positions.offset) * n;
        const From* in = from + row * n;
        T* out = to + row * n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) {
          out[i] = to_storage<T>(static_cast<C>(in[i]) + static_cast<C>(position[i]));
        }
      });
    });
  });
}

void positions_backward(Context& context, const ConstTensorView& dy, std::int64_t tokens,
                        const TensorView& dtable, Accumulate accumulate) {
  const Observed observed(context, "positions_backward", dy, dtable);
  const auto [rows, n] = rows_of(dy.shape());
  check_table(dtable, n, "a table of positions' gradient");
  require_count(dtable, compute_dtype(dy.dtype()), dtable.count(),
                "a table of positions' gradient");
  require(tokens >= 1 && rows % tokens == 0 && tokens <= dtable.shape()[0],
          "{} rows of sequences of {} tokens and a table of {}", rows, tokens,
          dtable.shape().text());
  if (accumulate == Accumulate::kOverwrite) {
    fill_zero(context, dtable.flat_slice(tokens * n, dtable.count() - tokens * n));
  }
  if (observed.handled_by<cuda::positions_backward>(dy, tokens, dtable, accumulate)) {
    return;
  }
  with_stored(dy.dtype(), [&, sequences = rows / tokens, n = n]<typename T>(T) {
    const T* from = dy.host<T>().data();
    Compute<T>* to = dtable.host<Compute<T>>().data();
    parallel_for_rows(context, tokens, n, [=](std::int64_t token) {
      sum_rows(
          from, n, sequences, [=](std::int64_t i) { return i * tokens + token; }, accumulate,
          to + token * n);
    });
  });
}

}  // namespace strata::ops
