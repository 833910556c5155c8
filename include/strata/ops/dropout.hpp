#pragma once

#include <cstdint>

#include "strata/core/random.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// The columns of a whole tensor that a slice of it holds.
struct ColumnSlice {
  std::int64_t first = 0;
  std::int64_t of = 0;  ///< columns of the whole; 0: the slice is the whole
};

/// The number of a tensor's first row among the rows of all samples: that of row `offset` of a
/// sample.
struct SampleRow {
  std::int64_t sample = 0;
  std::int64_t rows_of_sample = 1;
  std::int64_t offset = 0;

  [[nodiscard]] std::int64_t number() const { return sample * rows_of_sample + offset; }
};

/// Tells a GPU the number of a sample from which on dropout_forward counts, so that work recorded
/// once (GraphCache) drops other elements when another origin is set and the samples move with it.
/// The CPU needs none.
void set_sample_origin(Context& context, std::int64_t sample);

/// y = x / (1 - probability) where an element is kept, else 0; mask is 1 where kept. Element e of
/// row r is kept where word e of row first.number() + r of `stream` is at least probability * 2^32,
/// so the choice belongs to the sample and not to the microbatch that it comes in. With `columns`,
/// e counts from columns.first. In place (y is x) is allowed. Probability 0 copies.
/// Shapes: x, y, mask (uint8) equal, rows x anything. Pre: 0 <= probability < 1.
void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, const SampleRow& first, const TensorView& y,
                     const TensorView& mask, const ColumnSlice& columns = {});

/// y = residual + what dropout_forward() makes of sum + bias, for a row a sample; an empty bias or
/// residual is none. The same bits as add_bias_residual(), dropout_forward() and
/// add_bias_residual() one after the other, in one pass over memory on a GPU. In place (y is sum)
/// is allowed where the dtypes are equal. Shapes: sum rows x n, in y's dtype or its
/// compute_dtype(); bias n; residual, y, mask (uint8) rows x n. Pre: 0 <= probability < 1.
void bias_dropout_residual(Context& context, const ConstTensorView& sum,
                           const ConstTensorView& bias, const ConstTensorView& residual,
                           double probability, const RandomStream& stream, const SampleRow& first,
                           const TensorView& y, const TensorView& mask);

/// dx = dy / (1 - probability) where the mask is 1, else 0. In place (dx is dy) is allowed.
/// Shapes: dy, mask (uint8), dx equal.
void dropout_backward(Context& context, const ConstTensorView& dy, const ConstTensorView& mask,
                      double probability, const TensorView& dx);

}  // namespace strata::ops
