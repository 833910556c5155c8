#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "strata/ops/convolution.hpp"

#include "tensors.hpp"

namespace strata::ops {

inline std::ostream& operator<<(std::ostream& out, const ConvolutionShape& shape) {
  const auto axis = [&](const WindowAxis& of) {
    out << of.in << " to " << of.out << " by " << of.window << " stride " << of.stride
        << " dilation " << of.dilation << " padding " << of.padding;
  };
  out << shape.images << " images, height ";
  axis(shape.height);
  out << ", width ";
  axis(shape.width);
  return out << ", channels " << shape.in_channels << " to " << shape.out_channels << " in "
             << shape.groups << " groups";
}

namespace test {

/// An axis with `padding` before and `behind` after its elements, and all windows that fit.
inline WindowAxis axis(std::int64_t in, std::int64_t window, std::int64_t stride = 1,
                       std::int64_t dilation = 1, std::int64_t padding = 0,
                       std::int64_t behind = 0) {
  const std::int64_t reach = (window - 1) * dilation + 1;
  return {in, (in + padding + behind - reach) / stride + 1, window, stride, dilation, padding};
}

/// A square convolution that pads both ends alike.
inline ConvolutionShape square(std::int64_t images, std::int64_t size, std::int64_t window,
                               std::int64_t padding, std::int64_t in, std::int64_t out,
                               std::int64_t stride = 1, std::int64_t groups = 1) {
  const WindowAxis both = axis(size, window, stride, 1, padding, padding);
  return {images, both, both, in, out, groups};
}

/// Windows, paddings, channels and groups of every kind.
inline std::vector<ConvolutionShape> convolution_shapes() {
  return {
      square(5, 8, 3, 1, 3, 16),
      square(3, 12, 5, 0, 1, 20),
      square(3, 9, 5, 0, 20, 50),
      square(9, 7, 1, 0, 24, 40),
      square(7, 6, 1, 0, 10, 7, 2),
      square(2, 16, 3, 1, 32, 64, 2),
      square(70, 1, 1, 0, 33, 12),
      square(133, 2, 3, 1, 16, 16),
      square(4, 2, 5, 2, 6, 9),
      square(3, 3, 3, 4, 4, 5),
      square(4, 9, 3, 1, 12, 24, 1, 4),
      square(4, 9, 3, 1, 6, 9, 1, 3),
      square(4, 9, 3, 1, 32, 32, 2, 32),
      square(17, 16, 3, 1, 5, 18),
      // Uneven windows, strides, dilations and paddings; elements that no window reads.
      {3, axis(11, 3, 2, 1, 0, 1), axis(14, 5, 3, 1, 2, 1), 7, 13, 1},
      {2, axis(13, 3, 1, 2, 2, 2), axis(10, 2, 1, 3, 0, 3), 16, 32, 1},
      {2, axis(10, 2, 4), axis(9, 1, 3), 8, 8, 2},
  };
}

}  // namespace test
}  // namespace strata::ops
