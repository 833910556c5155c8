#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// y[n, c, r] = x[n, r, c]: converts channels-last images to channels-first and back.
/// Shapes: x images x rows x columns, y images x columns x rows; equal dtypes, any.
void swap_inner(Context& context, std::int64_t images, std::int64_t rows, std::int64_t columns,
                const ConstTensorView& x, const TensorView& y);

/// Zero padding around channels-last images.
struct BorderShape {
  std::int64_t images = 1;
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t channels = 1;
  std::int64_t border = 0;  ///< on each of the four sides
};

/// y = x with a border of zeros. Shapes: x images x height x width x channels, y images x (height +
/// 2 border) x (width + 2 border) x channels; equal dtypes, any.
void add_border(Context& context, const BorderShape& shape, const ConstTensorView& x,
                const TensorView& y);

/// x = y without its border, the gradient of add_border().
void remove_border(Context& context, const BorderShape& shape, const ConstTensorView& y,
                   const TensorView& x);

/// y = x with zeros appended to each row. Shapes: x rows x n, y rows x m; n <= m; equal dtypes,
/// any.
void widen_rows(Context& context, const ConstTensorView& x, const TensorView& y);

/// x = the first n of each row of y, the gradient of widen_rows(). Shapes: as there.
void narrow_rows(Context& context, const ConstTensorView& y, const TensorView& x);

}  // namespace strata::ops
