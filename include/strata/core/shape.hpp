#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "strata/core/error.hpp"

namespace strata {

/// Extents of a row-major tensor, outermost first; at most kMaxRank of them. No extents: a scalar.
class Shape {
 public:
  static constexpr std::size_t kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents)
      : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents) : rank_(extents.size()) {
    require(rank_ <= kMaxRank, "a tensor has {} dimensions, at most {} are supported", rank_,
            kMaxRank);
    std::copy(extents.begin(), extents.end(), extents_.begin());
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
    Shape result;
    result.rank_ = rank_ + 1;
    require(result.rank_ <= kMaxRank, "a tensor has more than {} dimensions", kMaxRank);
    result.extents_[0] = extent;
    std::copy_n(extents_.begin(), rank_, result.extents_.begin() + 1);
    return result;
  }
  /// This shape without its first dimension.
  [[nodiscard]] Shape tail() const {
    require(rank_ > 0, "a scalar has no first dimension to drop");
    return Shape(extents().subspan(1));
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.extents().begin(), a.extents().end(), b.extents().begin(),
                      b.extents().end());
  }

  /// As in "32 x 28 x 28"; "scalar" without dimensions.
  [[nodiscard]] std::string text() const;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  std::size_t rank_ = 0;
};

/// The shape of a sample in computation: images, which data sets store as channels x height x
/// width, become channels-last.
[[nodiscard]] inline Shape channels_last(const Shape& sample) {
  return sample.rank() == 3 ? Shape{sample[1], sample[2], sample[0]} : sample;
}

}  // namespace strata
