#include "images/image_decoder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include "strata/core/error.hpp"

namespace strata::io {
namespace {

// Far above any photograph, and low enough that a damaged header does not ask for all memory.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 27;

constexpr std::array<unsigned char, 3> kJpegStart{0xFF, 0xD8, 0xFF};
constexpr std::array<unsigned char, 8> kPngStart{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t N>
bool starts_with(std::span<const std::byte> file, const std::array<unsigned char, N>& start) {
  return file.size() >= N && std::memcmp(file.data(), start.data(), N) == 0;
}

void make_room(std::int64_t height, std::int64_t width, Image& image) {
  if (height < 1 || width < 1 || height > kMostPixels / width) {
    throw BadImage(fmt::format("has the implausible size {} x {}", height, width));
  }
  image.resize(height, width);
}

std::uint8_t product(unsigned a, unsigned b) {
  return static_cast<std::uint8_t>((a * b + 127) / 255);
}

// Scales the first three of each pixel's bytes by the fourth.
void scale_by_fourth(const std::vector<std::uint8_t>& four, Image& image) {
  const std::size_t count = image.pixels.size() / 3;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      image.pixels[3 * i + channel] = product(four[4 * i + channel], four[4 * i + 3]);
    }
  }
}

}  // namespace

void ImageDecoder::HandleDelete::operator()(void* handle) const {
  tjDestroy(handle);
}

ImageDecoder::ImageDecoder() {
  renew_jpeg();
}

void ImageDecoder::renew_jpeg() {
  jpeg_.reset(tjInitDecompress());
  require(jpeg_ != nullptr, "no JPEG decoder: {}", tjGetErrorStr2(nullptr));
}

void ImageDecoder::decode(std::span<const std::byte> file, Image& image) {
  if (file.empty()) {
    throw BadImage("is empty");
  }
  if (starts_with(file, kJpegStart)) {
    decode_jpeg(file, image);
  } else if (starts_with(file, kPngStart)) {
    decode_png(file, image);
  } else {
    throw BadImage("is no JPEG or PNG file");
  }
}

void ImageDecoder::decode_jpeg(std::span<const std::byte> file, Image& image) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(file.data());
  const auto bad = [&] {
    const std::string reason = tjGetErrorStr2(jpeg_.get());
    // A decoder that failed within a header would go on there with the next file.
    renew_jpeg();
    return BadImage(fmt::format("is a damaged JPEG file or cut short ({})", reason));
  };
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colours = 0;
  if (tjDecompressHeader3(jpeg_.get(), bytes, file.size(), &width, &height, &subsampling,
                          &colours) != 0) {
    throw bad();
  }
  make_room(height, width, image);
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  std::uint8_t* out = image.pixels.data();
  if (cmyk) {
    four_.resize(image.pixels.size() / 3 * 4);
    out = four_.data();
  }
  if (tjDecompress2(jpeg_.get(), bytes, file.size(), out, width, 0, height,
                    cmyk ? TJPF_CMYK : TJPF_RGB, TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS) != 0) {
    // Extraneous bytes between segments are harmless, and some cameras write them.
    const std::string_view reason = tjGetErrorStr2(jpeg_.get());
    if (tjGetErrorCode(jpeg_.get()) != TJERR_WARNING ||
        reason.find("extraneous bytes") == std::string_view::npos) {
      throw bad();
    }
  }
  if (cmyk) {
    // CMYK files store inverted inks, as Adobe's programs do.
    scale_by_fourth(four_, image);
  }
}

namespace {

// libpng stops after the last pixel; a file truncated there may lack a checksum.
bool has_last_chunk(std::span<const std::byte> file) {
  constexpr std::size_t kAround = 12;  // a chunk's length, name and checksum
  std::size_t at = kPngStart.size();
  while (file.size() - at >= kAround) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      length = length << 8U | std::to_integer<std::size_t>(file[at + i]);
    }
    if (std::memcmp(file.data() + at + 4, "IEND", 4) == 0) {
      return true;
    }
    if (length > file.size() - at - kAround) {
      return false;
    }
    at += length + kAround;
  }
  return false;
}

}  // namespace

void ImageDecoder::decode_png(std::span<const std::byte> file, Image& image) {
  // After the signature come length and name of the first chunk, width and height.
  constexpr std::size_t kDepthAt = 24;
  if (file.size() > kDepthAt && file[kDepthAt] == std::byte{16}) {
    throw BadImage("is a PNG file of 16 bits a channel, 8 are expected; convert it");
  }
  if (!has_last_chunk(file)) {
    throw BadImage("is a PNG file that was cut short");
  }
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const auto check = [&](int success) {
    if (success == 0) {
      const std::string reason = png.message;
      png_image_free(&png);
      throw BadImage(fmt::format("is a damaged PNG file or cut short ({})", reason));
    }
  };
  check(png_image_begin_read_from_memory(&png, file.data(), file.size()));
  try {
    make_room(png.height, png.width, image);
    four_.resize(image.pixels.size() / 3 * 4);
  } catch (...) {
    png_image_free(&png);
    throw;
  }
  png.format = PNG_FORMAT_RGBA;
  check(png_image_finish_read(&png, nullptr, four_.data(), 0, nullptr));
  scale_by_fourth(four_, image);
}

}  // namespace strata::io
