#pragma once

#include <compare>
#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// A window's geometry along one dimension of an image.
struct WindowAxis {
  std::int64_t in = 1;
  std::int64_t out = 1;
  std::int64_t window = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  /// Zeros before the first element; the padding after the last follows from the other fields.
  std::int64_t padding = 0;

  /// Extent of a dilated window in elements.
  [[nodiscard]] std::int64_t reach() const { return (window - 1) * dilation + 1; }

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const WindowAxis&, const WindowAxis&) = default;
};

/// A convolution of channels-last images (NHWC).
struct ConvolutionShape {
  std::int64_t images = 1;
  WindowAxis height;
  WindowAxis width;
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  /// Output channels of group g read input channels of group g only.
  std::int64_t groups = 1;

  [[nodiscard]] Shape input() const { return {images, height.in, width.in, in_channels}; }
  [[nodiscard]] Shape output() const { return {images, height.out, width.out, out_channels}; }
  [[nodiscard]] Shape weight() const {
    return {out_channels, in_channels / groups, height.window, width.window};
  }

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const ConvolutionShape&, const ConvolutionShape&) = default;
};

struct ConvolutionOptions {
  /// Added to every output pixel; empty for no bias. Shape: out_channels.
  ConstTensorView bias = {};
  /// Applied last. Pre: kNone or kRelu.
  Activation activation = Activation::kNone;
};

/// y = activation(x * w + bias), a cross-correlation.
/// Shapes: x shape.input(), w shape.weight(), y shape.output(); or any shapes with equal counts.
/// All of one dtype, float32, float64 or bfloat16; without bias and activation, y may be float32
/// where the others are bfloat16. Bits depend only on the shape and options, not on the number of
/// threads; an image's bits do not depend on other images.
void convolution_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                         const ConstTensorView& w, const TensorView& y,
                         const ConvolutionOptions& options = {});

/// dx = the gradient of x. Shapes as forward's; dx may be float32 where the others are bfloat16.
void convolution_backward_input(Context& context, const ConvolutionShape& shape,
                                const ConstTensorView& dy, const ConstTensorView& w,
                                const TensorView& dx);

/// dw = (or +=) the gradient of w, in compute_dtype() of x, groups of images added in an order that
/// depends only on the shape. column_sum() of dy is the gradient of the bias.
void convolution_backward_weight(Context& context, const ConvolutionShape& shape,
                                 const ConstTensorView& x, const ConstTensorView& dy,
                                 const TensorView& dw, Accumulate accumulate);

}  // namespace strata::ops
