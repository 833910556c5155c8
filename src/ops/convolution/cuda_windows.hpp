#pragma once

#include <cstdint>

#include "strata/ops/convolution.hpp"

// Windows in device code. Included by .cu files alone.
namespace strata::ops::cuda {

/// Index along an axis of tap `place` of window `out`; outside of [0, axis.in) in the padding.
__device__ inline std::int64_t visible_keys(const WindowAxis& axis, std::int64_t out,
                                            std::int64_t place) {
  return out * axis.stride - axis.padding + place * axis.dilation;
}

__device__ inline bool is_within(const WindowAxis& axis, std::int64_t at) {
  return at >= 0 && at < axis.in;
}

/// The window whose tap `place` is at index `at`; -1 where there is none.
__device__ inline std::int64_t window_at(const WindowAxis& axis, std::int64_t at,
                                         std::int64_t place) {
  const std::int64_t from_first = at + axis.padding - place * axis.dilation;
  if (from_first < 0 || from_first % axis.stride != 0) {
    return -1;
  }
  const std::int64_t out = from_first / axis.stride;
  return out < axis.out ? out : -1;
}

/// Taps of window `out` within the image.
__device__ inline std::int64_t elements_within(const WindowAxis& axis, std::int64_t out) {
  std::int64_t count = 0;
  for (std::int64_t place = 0; place < axis.window; ++place) {
    count += is_within(axis, visible_keys(axis, out, place)) ? 1 : 0;
  }
  return count;
}

}  // namespace strata::ops::cuda
