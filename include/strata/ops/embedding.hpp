#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// Looks up token ids in a shard of the vocabulary, the ids [first_id, first_id + rows of table):
/// y[r] = table[ids[r] - first_id] + 0 (-0 becomes +0, as in a sum over shards) where the table has
/// that row; other rows are 0, or unchanged with kAdd. Shapes: ids (int64) rows; table ids x n; y
/// rows x n (any leading dimensions count as rows), the dtype of table or its compute_dtype().
void embedding_forward(Context& context, const ConstTensorView& ids, const ConstTensorView& table,
                       std::int64_t first_id, const TensorView& y, Accumulate accumulate);

/// dtable[id - first_id] = (or +=) the sum of dy[r] over the rows r that hold the id, rows in
/// order. Ids outside the table add nothing.
/// Shapes: ids (int64) rows; dy rows x n; dtable ids x n in compute_dtype() of dy.
void embedding_backward(Context& context, const ConstTensorView& ids, const ConstTensorView& dy,
                        std::int64_t first_id, const TensorView& dtable, Accumulate accumulate);

/// y[r] = x[r] + table[(first_row + r) % tokens + offset], rounded once. In place (y is x) is
/// allowed.
/// Shapes: x, y rows x n, x in y's dtype or its compute_dtype(); table positions x n in y's dtype.
struct PositionRows {
  std::int64_t tokens = 0;     ///< rows of one sequence
  std::int64_t first_row = 0;  ///< number of row 0 among all rows
  std::int64_t offset = 0;     ///< position of a sequence's first token
};
void add_positions(Context& context, const ConstTensorView& x, const ConstTensorView& table,
                   const PositionRows& rows, const TensorView& y);

/// dtable[t] = (or +=) the sum over sequences of dy[sequence, t], in order; rows of dtable from
/// `tokens` on are 0 (or stay).
/// Shapes: dy (sequences tokens) x n; dtable positions x n in compute_dtype() of dy.
void positions_backward(Context& context, const ConstTensorView& dy, std::int64_t tokens,
                        const TensorView& dtable, Accumulate accumulate);

}  // namespace strata::ops
