#include "images/image_transform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "strata/core/error.hpp"

namespace strata::io {
namespace {

constexpr std::int32_t kOne = 1 << 20;

/// Source pixels of one output pixel, with weights that sum to kOne.
struct Taps {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights;
};

std::vector<Taps> make_taps(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(1.0, scale);
  std::vector<Taps> all(static_cast<std::size_t>(to));
  std::vector<double> heights;
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale - 0.5;
    const auto first =
        std::max<std::int64_t>(0, static_cast<std::int64_t>(std::ceil(centre - support)));
    const auto last =
        std::min<std::int64_t>(from - 1, static_cast<std::int64_t>(std::floor(centre + support)));
    heights.clear();
    double sum = 0;
    for (std::int64_t j = first; j <= last; ++j) {
      heights.push_back(std::max(0.0, support - std::abs(static_cast<double>(j) - centre)));
      sum += heights.back();
    }
    Taps& taps = all[static_cast<std::size_t>(i)];
    taps.first = first;
    std::int32_t left = kOne;
    for (const double height : heights) {
      taps.weights.push_back(static_cast<std::int32_t>(std::lround(height / sum * kOne)));
      left -= taps.weights.back();
    }
    *std::max_element(taps.weights.begin(), taps.weights.end()) += left;
  }
  return all;
}

// The weighted sum of bytes that lie `stride` apart, rounded.
std::uint8_t weighted(const std::uint8_t* pixels, std::int64_t stride, const Taps& taps) {
  std::int32_t sum = kOne / 2;
  for (const std::int32_t weight : taps.weights) {
    sum += weight * *pixels;
    pixels += stride;
  }
  return static_cast<std::uint8_t>(sum / kOne);
}

}  // namespace

void resize(const Image& image, std::int64_t height, std::int64_t width, Image& out) {
  require(height > 0 && width > 0, "an image was to become {} x {}", height, width);
  const std::vector<Taps> columns = make_taps(image.width, width);
  const std::vector<Taps> rows = make_taps(image.height, height);
  Image narrow;
  narrow.resize(image.height, width);
  std::uint8_t* to = narrow.pixels.data();
  for (std::int64_t row = 0; row < image.height; ++row) {
    const std::uint8_t* from = image.pixels.data() + row * image.width * 3;
    for (const Taps& taps : columns) {
      for (std::int64_t channel = 0; channel < 3; ++channel) {
        *to++ = weighted(from + taps.first * 3 + channel, 3, taps);
      }
    }
  }
  out.resize(height, width);
  to = out.pixels.data();
  for (const Taps& taps : rows) {
    const std::uint8_t* from = narrow.pixels.data() + taps.first * width * 3;
    for (std::int64_t i = 0; i < width * 3; ++i) {
      *to++ = weighted(from + i, width * 3, taps);
    }
  }
}

void crop_centre(Image& image, std::int64_t height, std::int64_t width) {
  require(image.height >= height && image.width >= width, "{} x {} cannot be cut out of {} x {}",
          height, width, image.height, image.width);
  const std::int64_t top = (image.height - height) / 2;
  const std::int64_t left = (image.width - width) / 2;
  for (std::int64_t row = 0; row < height; ++row) {
    const std::uint8_t* from = image.pixels.data() + ((top + row) * image.width + left) * 3;
    std::memmove(image.pixels.data() + row * width * 3, from, static_cast<std::size_t>(width * 3));
  }
  image.resize(height, width);
}

void write_planes(const Image& image, std::int64_t channels, std::span<std::byte> out) {
  const auto pixels = static_cast<std::size_t>(image.height * image.width);
  require(out.size() == pixels * static_cast<std::size_t>(channels), "{} bytes for {} x {} x {}",
          out.size(), channels, image.height, image.width);
  const std::uint8_t* in = image.pixels.data();
  for (std::size_t i = 0; i < pixels; ++i, in += 3) {
    if (channels == 1) {
      out[i] = static_cast<std::byte>((299 * in[0] + 587 * in[1] + 114 * in[2] + 500) / 1000);
      continue;
    }
    for (std::size_t channel = 0; channel < 3; ++channel) {
      out[channel * pixels + i] = static_cast<std::byte>(in[channel]);
    }
  }
}

}  // namespace strata::io
