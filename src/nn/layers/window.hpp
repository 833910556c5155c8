#pragma once

#include <string>

#include "strata/ops/pooling.hpp"

#include "layers/layer_kinds.hpp"

namespace strata::nn {

/// A window over images.
struct Window {
  ops::WindowAxis height;
  ops::WindowAxis width;

  /// As in "3x3/2": extent, and stride where it is not 1.
  [[nodiscard]] std::string text() const;
};

/// The default stride of a window.
enum class WindowStride { kOne, kWindow };

/// Takes the window (the next value), stride, padding and dilation: padding is "same" (the output
/// is input / stride rounded up, an odd zero at the end) or "valid", as in Keras, or the number of
/// zeros at both ends. Throws: Error(kUsage) where the input is no image or smaller than the
/// window.
Window take_window(LayerLine& line, const LayerSite& site, WindowStride stride);

/// The shape of images after a window.
Shape shape_behind(const Window& window, std::int64_t channels);

}  // namespace strata::nn
