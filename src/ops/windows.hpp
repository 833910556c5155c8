#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "strata/core/error.hpp"
#include "strata/ops/convolution.hpp"

namespace strata::ops {

/// Padding after the last element; negative where a stride leaves elements unread.
inline std::int64_t padding_behind(const WindowAxis& axis) {
  return (axis.out - 1) * axis.stride + axis.reach() - axis.in - axis.padding;
}

/// Throws std::logic_error unless the window geometry of `name` is valid.
inline void require_axis(const WindowAxis& axis, std::string_view name) {
  require(axis.in >= 1 && axis.out >= 1 && axis.window >= 1 && axis.stride >= 1 &&
              axis.dilation >= 1 && axis.padding >= 0,
          "{} of {} to {} by windows of {}, stride {}, dilation {}, padding {}", name, axis.in,
          axis.out, axis.window, axis.stride, axis.dilation, axis.padding);
  require(padding_behind(axis) > -axis.stride, "{} of {} to {} omits windows that fit", name,
          axis.in, axis.out);
}

/// Elements [begin, end) of one window that lie within the image; element i of the window is
/// element first + i dilation of the image.
struct WindowPart {
  std::int64_t first = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

inline WindowPart window_part(const WindowAxis& axis, std::int64_t out) {
  const std::int64_t first = out * axis.stride - axis.padding;
  const std::int64_t begin = first < 0 ? (-first + axis.dilation - 1) / axis.dilation : 0;
  const std::int64_t left = axis.in - first;
  const std::int64_t end = left <= 0 ? 0 : (left + axis.dilation - 1) / axis.dilation;
  return {first, begin, std::max(begin, std::min(axis.window, end))};
}

}  // namespace strata::ops
