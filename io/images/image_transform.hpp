#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "images/image_decoder.hpp"

namespace strata::io {

/// Resizes with a triangle filter: bilinear for enlargement, widened by the scale for reduction, so
/// that every source pixel contributes. Fixed-point arithmetic gives the same bytes everywhere.
/// Pre: height, width > 0.
void resize(const Image& image, std::int64_t height, std::int64_t width, Image& out);

/// Crops the centre; an odd remainder stays at the bottom right. Pre: the image is large enough.
void crop_centre(Image& image, std::int64_t height, std::int64_t width);

/// Writes an image as planes of `channels`: 3 for red, green, blue, 1 for luma
/// (0.299, 0.587, 0.114). Shapes: out: (channels, height, width).
void write_planes(const Image& image, std::int64_t channels, std::span<std::byte> out);

}  // namespace strata::io
