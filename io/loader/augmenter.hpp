#pragma once

#include <cstddef>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/random.hpp"
#include "strata/core/shape.hpp"
#include "strata/io/loader.hpp"

namespace strata::io {

/// Changes images at random: crop, then flip, then cutout. What becomes of an image depends on the
/// seed and on its place in the stream alone.
/// Source: T. DeVries, G. W. Taylor, "Improved regularization of convolutional neural networks with
/// cutout", 2017, for the last.
class Augmenter {
 public:
  /// Shapes: image: (height, width, channels). Pre: the dtype is a floating-point one.
  Augmenter(const Augmentation& augmentation, std::uint64_t seed, const Shape& image, DType dtype);

  /// Pre: `in` and `out` do not overlap.
  void apply(std::int64_t position, const std::byte* in, std::byte* out) const;

 private:
  /// What is done to one image.
  struct Choice {
    std::int64_t down = 0;   ///< rows that the image is moved by
    std::int64_t right = 0;  ///< columns, before it is flipped
    bool flip = false;
    std::int64_t top = 0;  ///< of the square that is set to zero, perhaps beyond the border
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
