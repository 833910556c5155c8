#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

namespace strata {

/// Extents of a row-major tensor, outermost first; at most kMaxRank of them. No extents: a scalar.
class Shape {
 public:
  static constexpr std::size_t kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents)
      : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents) {
    for (const std::int64_t extent : extents) {
      append(extent);
    }
  }

  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] std::int64_t operator[](std::size_t dimension) const { return extents_[dimension]; }
  [[nodiscard]] std::span<const std::int64_t> extents() const { return {extents_.data(), rank_}; }
  /// Number of elements.
  [[nodiscard]] std::int64_t count() const {
    std::int64_t product = 1;
    for (const std::int64_t extent : extents()) {
      product *= extent;
    }
    return product;
  }
  [[nodiscard]] std::int64_t back() const { return rank_ == 0 ? 1 : extents_[rank_ - 1]; }

  /// This shape with `extent` put before its first dimension.
  [[nodiscard]] Shape prepended(std::int64_t extent) const {
    Shape result{extent};
    for (const std::int64_t inner : extents()) {
      result.append(inner);
    }
    return result;
  }
  /// This shape without its first dimension.
  [[nodiscard]] Shape tail() const {
    if (rank_ == 0) {
      refuse_tail();
    }
    return Shape(extents().subspan(1));
  }

  friend bool operator==(const Shape&, const Shape&) = default;

  /// As in "32 x 28 x 28"; "scalar" without dimensions.
  [[nodiscard]] std::string text() const;

 private:
  [[noreturn]] static void refuse_dimension();
  [[noreturn]] static void refuse_tail();

  void append(std::int64_t extent) {
    if (rank_ == kMaxRank) {
      refuse_dimension();
    }
    extents_[rank_++] = extent;
  }

  // Zero from rank_ on.
  std::array<std::int64_t, kMaxRank> extents_{};
  std::size_t rank_ = 0;
};

/// The bytes of an array, or -1 where an extent is negative or 64 bits do not hold the product: for
/// shapes that a file claims.
[[nodiscard]] inline std::int64_t checked_bytes(const Shape& shape, std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  for (const std::int64_t extent : shape.extents()) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      return -1;
    }
  }
  return bytes;
}

/// The shape of a sample in computation: images, which data sets store as channels x height x
/// width, become channels-last.
[[nodiscard]] inline Shape channels_last(const Shape& sample) {
  return sample.rank() == 3 ? Shape{sample[1], sample[2], sample[0]} : sample;
}

}  // namespace strata
