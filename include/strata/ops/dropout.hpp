#pragma once

#include <cstdint>

#include "strata/core/random.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// The columns of a full tensor that a slice holds.
struct ColumnSlice {
  std::int64_t first = 0;
  std::int64_t of = 0;  ///< columns of the full tensor; 0 when the slice is the full tensor
};

/// Global row number of a tensor's first row: row `offset` of sample `sample`.
struct SampleRow {
  std::int64_t sample = 0;
  std::int64_t rows_of_sample = 1;
  std::int64_t offset = 0;

  [[nodiscard]] std::int64_t number() const { return sample * rows_of_sample + offset; }
};

/// Sets the sample number that dropout counts from on a GPU: a CUDA graph that was captured once
/// (GraphCache) draws new masks after the origin moves. No effect on the CPU.
void set_sample_origin(Context& context, std::int64_t sample);

/// y = x / (1 - probability) where an element is kept, else 0; mask is 1 where kept. Element e of
/// row r is kept where word e of row first.number() + r of `stream` is at least probability * 2^32,
/// so the mask depends on the sample, not on its microbatch. With `columns`, e counts from
/// columns.first. In place (y is x) is allowed. Probability 0 copies.
/// Shapes: x, y, mask (uint8) equal, rows x anything. Pre: 0 <= probability < 1.
void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, const SampleRow& first, const TensorView& y,
                     const TensorView& mask, const ColumnSlice& columns = {});

/// y = residual + dropout(sum + bias); bias and residual may be empty. Same bits as
/// add_bias_residual(), dropout_forward() and add_bias_residual() in turn; one fused kernel on a
/// GPU. In place (y is sum) is allowed where the dtypes are equal. Shapes: sum rows x n, in y's
/// dtype or its compute_dtype(); bias n; residual, y, mask (uint8) rows x n. Pre: 0 <= probability
/// < 1.
void bias_dropout_residual(Context& context, const ConstTensorView& sum,
                           const ConstTensorView& bias, const ConstTensorView& residual,
                           double probability, const RandomStream& stream, const SampleRow& first,
                           const TensorView& y, const TensorView& mask);

/// dx = dy / (1 - probability) where the mask is 1, else 0. In place (dx is dy) is allowed.
/// Shapes: dy, mask (uint8), dx equal.
void dropout_backward(Context& context, const ConstTensorView& dy, const ConstTensorView& mask,
                      double probability, const TensorView& dx);

}  // namespace strata::ops
