#pragma once

#include <bit>
#include <cstdint>

namespace strata {

/// The upper half of a float: 8 bits of exponent, 7 of fraction. For storage; arithmetic is
/// float's.
class BFloat16 {
 public:
  BFloat16() = default;
  /// Rounds to nearest, ties to even; a NaN stays a NaN.
  explicit BFloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    bits_ = static_cast<std::uint16_t>((is_nan ? bits | 0x400000U : rounded) >> 16U);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits_) << 16U);
  }
  [[nodiscard]] std::uint16_t bits() const { return bits_; }

  friend bool operator==(const BFloat16&, const BFloat16&) = default;

 private:
  std::uint16_t bits_ = 0;
};

static_assert(sizeof(BFloat16) == 2);

}  // namespace strata
