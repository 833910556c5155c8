#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::ops {

/// An element is dropped when its random word is below this threshold, which fixes the masks' bits.
inline std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min(probability * 0x1p32, 0xFFFFFFFFp0));
}

}  // namespace strata::ops
