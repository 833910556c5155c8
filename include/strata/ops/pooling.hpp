#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/convolution.hpp"

namespace strata::ops {

class Context;

/// Pooling windows over channels-last images. Pre: every window covers at least one element, so
/// padding is less than the window.
struct PoolingShape {
  std::int64_t images = 1;
  WindowAxis height;
  WindowAxis width;
  std::int64_t channels = 1;

  [[nodiscard]] Shape input() const { return {images, height.in, width.in, channels}; }
  [[nodiscard]] Shape output() const { return {images, height.out, width.out, channels}; }
};

/// y = the maximum of each window, the first of equal ones; `at` is its index in the window. NaNs
/// propagate; padding is never the maximum.
/// Shapes: x shape.input(), y and at (uint8) shape.output(), or as many elements. Pre: a window has
/// at most 256 elements.
void max_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                      const TensorView& y, const TensorView& at);

/// dx = dy at each window's maximum; windows that share an element are added in order.
void max_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                       const ConstTensorView& at, const TensorView& dx);

/// y = the mean of each window's elements that lie within the image.
/// Shapes: x shape.input(), y shape.output(), or as many elements.
void average_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                          const TensorView& y);

void average_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                           const TensorView& dx);

}  // namespace strata::ops
