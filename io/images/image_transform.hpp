#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "images/image_decoder.hpp"

namespace strata::io {

/// Resizes with a triangle filter: bilinear where the image grows; where it shrinks the triangle is
/// as much wider as the pixels are, so that every old pixel counts. Whole numbers only: the same
/// bytes everywhere. Pre: height, width > 0.
void resize(const Image& image, std::int64_t height, std::int64_t width, Image& out);

/// Cuts out the centre; what is odd stays at the end. Pre: the image is as large at least.
void crop_centre(Image& image, std::int64_t height, std::int64_t width);

/// Writes an image as planes of `channels`: 3 for red, green, blue, 1 for luma
/// (0.299, 0.587, 0.114). Shapes: out: (channels, height, width).
void write_planes(const Image& image, std::int64_t channels, std::span<std::byte> out);

}  // namespace strata::io
