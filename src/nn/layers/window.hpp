#pragma once

#include <string>

#include "strata/ops/pooling.hpp"

#include "layers/layer_kinds.hpp"

namespace strata::nn {

/// A window over images, from a layer's line.
struct Window {
  ops::WindowAxis height;
  ops::WindowAxis width;

  /// As in "3x3/2": extent, and stride where it is not 1.
  [[nodiscard]] std::string text() const;
};

/// The stride of a window whose line gives none.
enum class WindowStride { kOne, kWindow };

/// Takes the window (the next value), stride, padding and dilation: padding is "same" (the output
/// is input / stride rounded up, an odd zero at the end) or "valid", as Keras means them, or the
/// number of zeros at both ends. Throws: Error(kUsage) where the input is no image, or a window
/// does not fit into it.
Window take_window(LayerLine& line, const LayerSite& site, WindowStride stride);

/// The port of images behind a window.
Shape shape_behind(const Window& window, std::int64_t channels);

}  // namespace strata::nn
