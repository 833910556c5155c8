#pragma once

#include <compare>
#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// How a window moves along one dimension of images.
struct WindowAxis {
  std::int64_t in = 1;
  std::int64_t out = 1;
  std::int64_t window = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  /// Zeros before the first element; what lies behind the last follows from the rest.
  std::int64_t padding = 0;

  /// Elements that a window reaches over.
  [[nodiscard]] std::int64_t reach() const { return (window - 1) * dilation + 1; }

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const WindowAxis&, const WindowAxis&) = default;
};

/// A convolution of images that lie channels last.
struct ConvolutionShape {
  std::int64_t images = 1;
  WindowAxis height;
  WindowAxis width;
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  /// Channels of group g see inputs of group g alone.
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
  /// Added to every pixel; empty: none. Shape: out_channels.
  ConstTensorView bias = {};
  /// Applied last. Pre: kNone or kRelu.
  Activation activation = Activation::kNone;
};

/// y = activation(x * w + bias), a cross-correlation as the field calls convolution.
/// Shapes: x shape.input(), w shape.weight(), y shape.output(); any shapes of as many elements will
/// do. All of one dtype, float32, float64 or bfloat16; y may be float32 where the others are
/// bfloat16, without bias and activation.
/// The bits of y depend on the shape and options alone, not on threads, and those of an image not
/// on the others.
void convolution_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                         const ConstTensorView& w, const TensorView& y,
                         const ConvolutionOptions& options = {});

/// dx = the gradient of x. Shapes as forward's; dx may be float32 where the others are bfloat16.
void convolution_backward_input(Context& context, const ConvolutionShape& shape,
                                const ConstTensorView& dy, const ConstTensorView& w,
                                const TensorView& dx);

/// dw = (or +=) the gradient of w, in compute_dtype() of x, groups of images added in an order that
/// follows from the shape alone. The gradient of a bias is column_sum() of dy.
void convolution_backward_weight(Context& context, const ConvolutionShape& shape,
                                 const ConstTensorView& x, const ConstTensorView& dy,
                                 const TensorView& dw, Accumulate accumulate);

}  // namespace strata::ops
