#pragma once

#include <cstddef>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/random.hpp"
#include "strata/core/shape.hpp"
#include "strata/io/loader.hpp"

namespace strata::io {

/// Augments images at random: crop, then flip, then cutout. The result depends only on the image,
/// the seed and the stream index. Source: T. DeVries, G. W. Taylor, "Improved regularization of
/// convolutional neural networks with cutout", 2017.
class Augmenter {
 public:
  /// Shapes: image: (height, width, channels). Pre: `dtype` is a floating-point type.
  Augmenter(const Augmentation& augmentation, std::uint64_t seed, const Shape& image, DType dtype);

  /// Pre: `in` and `out` do not overlap.
  void apply(std::int64_t position, const std::byte* in, std::byte* out) const;

 private:
  /// Random parameters for one image.
  struct Choice {
    std::int64_t down = 0;   ///< rows that the image is shifted by
    std::int64_t right = 0;  ///< columns, before the flip
    bool flip = false;
    std::int64_t top = 0;  ///< of the cutout square, possibly outside the image
    std::int64_t left = 0;
  };
  [[nodiscard]] Choice choice_at(std::int64_t position) const;
  void move_row(const Choice& choice, const std::byte* in, std::byte* out) const;
  void cut_out(const Choice& choice, std::byte* out) const;

  Augmentation augmentation_;
  RandomStream random_;
  std::int64_t height_;
  std::int64_t width_;
  std::int64_t pixel_bytes_;
};

}  // namespace strata::io
