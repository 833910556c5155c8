#pragma once

#include <cstddef>
#include <span>

#include "images/image_decoder.hpp"

namespace strata::io {

/// How the pixels of a JPEG file lie, as its Exif data say: 1 to 8, and 1 where they say nothing.
/// Source: CIPA DC-008, "Exchangeable image file format for digital still cameras: Exif", tag 274.
[[nodiscard]] int exif_orientation(std::span<const std::byte> file);

/// Whether rows of the stored image are columns of the one that is shown.
[[nodiscard]] inline bool swaps_sides(int orientation) {
  return orientation >= 5;
}

/// Turns and mirrors a stored image as it is to be shown.
void orient(const Image& stored, int orientation, Image& shown);

}  // namespace strata::io
