#include "images/image_decoder.hpp"

#include <array>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "images/exif.hpp"

namespace strata::io {
namespace {

constexpr std::array<unsigned char, 3> kJpegStart{0xFF, 0xD8, 0xFF};
constexpr std::array<unsigned char, 8> kPngStart{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t N>
bool starts_with(std::span<const std::byte> file, const std::array<unsigned char, N>& start) {
  return file.size() >= N && std::memcmp(file.data(), start.data(), N) == 0;
}

ImageSize checked(const ImageSize& size) {
  constexpr std::int64_t kMost = ImageDecoder::kMostPixels;
  if (size.height < 1 || size.width < 1 || size.height > kMost / size.width) {
    throw BadImage(
        fmt::format("is {} x {} (height x width); images of 1 to {} pixels are read; "
                    "scale it down",
                    size.height, size.width, count_text(kMost)));
  }
  return size;
}

enum class FileKind { kJpeg, kPng };

FileKind kind_of(std::span<const std::byte> file) {
  if (file.empty()) {
    throw BadImage("is empty");
  }
  if (starts_with(file, kJpegStart)) {
    return FileKind::kJpeg;
  }
  if (!starts_with(file, kPngStart)) {
    throw BadImage("is no JPEG or PNG file");
  }
  return FileKind::kPng;
}

/// The chunks of a PNG file that hold its pixels: critical ones and transparency. Others, as gAMA
/// and iCCP, would have libpng change the stored values. Throws: BadImage for a file without its
/// last chunk, where libpng would stop after the last pixel.
std::vector<std::byte> chunks_of_pixels(std::span<const std::byte> file) {
  constexpr std::size_t kAround = 12;  // a chunk's length, name and checksum
  constexpr std::byte kLowerCase{0x20};
  std::size_t at = kPngStart.size();
  std::vector<std::byte> kept(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(at));
  while (file.size() - at >= kAround) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      length = length << 8U | std::to_integer<std::size_t>(file[at + i]);
    }
    if (length > file.size() - at - kAround) {
      break;
    }
    const std::span<const std::byte> chunk = file.subspan(at, length + kAround);
    const auto is = [&](const char* name) { return std::memcmp(&chunk[4], name, 4) == 0; };
    if ((chunk[4] & kLowerCase) == std::byte{0} || is("tRNS")) {
      kept.insert(kept.end(), chunk.begin(), chunk.end());
    }
    if (is("IEND")) {
      return kept;
    }
    at += chunk.size();
  }
  throw BadImage("is a PNG file that was cut short");
}

/// A PNG file whose header was read.
class PngHeader {
 public:
  explicit PngHeader(std::span<const std::byte> file) {
    // After the signature come length and name of the first chunk, width and height.
    constexpr std::size_t kDepthAt = 24;
    if (file.size() > kDepthAt && file[kDepthAt] == std::byte{16}) {
      throw BadImage("is a PNG file of 16 bits a channel, 8 are expected; convert it");
    }
    file_ = chunks_of_pixels(file);
    png_.version = PNG_IMAGE_VERSION;
    check(png_image_begin_read_from_memory(&png_, file_.data(), file_.size()));
  }
  ~PngHeader() { png_image_free(&png_); }
  PngHeader(const PngHeader&) = delete;
  PngHeader& operator=(const PngHeader&) = delete;

  [[nodiscard]] ImageSize size() const { return {png_.height, png_.width}; }
  [[nodiscard]] bool has_alpha() const { return (png_.format & PNG_FORMAT_FLAG_ALPHA) != 0; }
  void read(png_uint_32 format, std::vector<std::uint8_t>& pixels) {
    png_.format = format;
    check(png_image_finish_read(&png_, nullptr, pixels.data(), 0, nullptr));
  }

 private:
  void check(int success) const {
    if (success == 0) {
      throw BadImage(fmt::format("is a damaged PNG file or cut short ({})", png_.message));
    }
  }

  std::vector<std::byte> file_;
  png_image png_{};
};

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

ImageSize ImageDecoder::size_of(std::span<const std::byte> file) {
  if (kind_of(file) == FileKind::kPng) {
    return checked(PngHeader(file).size());
  }
  const ImageSize stored = checked(read_jpeg_header(file));
  return swaps_sides(exif_orientation(file)) ? ImageSize{stored.width, stored.height} : stored;
}

void ImageDecoder::decode(std::span<const std::byte> file, Image& image) {
  return kind_of(file) == FileKind::kJpeg ? decode_jpeg(file, image) : decode_png(file, image);
}

BadImage ImageDecoder::bad_jpeg() {
  const std::string reason = tjGetErrorStr2(jpeg_.get());
  // A decoder that failed within a header would go on there with the next file.
  renew_jpeg();
  return BadImage(fmt::format("is a damaged JPEG file or cut short ({})", reason));
}

ImageSize ImageDecoder::read_jpeg_header(std::span<const std::byte> file) {
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colours = 0;
  if (tjDecompressHeader3(jpeg_.get(), reinterpret_cast<const unsigned char*>(file.data()),
                          file.size(), &width, &height, &subsampling, &colours) != 0) {
    throw bad_jpeg();
  }
  cmyk_ = colours == TJCS_CMYK || colours == TJCS_YCCK;
  return {height, width};
}

void ImageDecoder::decode_jpeg(std::span<const std::byte> file, Image& image) {
  const int orientation = exif_orientation(file);
  if (orientation == 1) {
    return decode_stored_jpeg(file, image);
  }
  decode_stored_jpeg(file, stored_);
  orient(stored_, orientation, image);
}

void ImageDecoder::decode_stored_jpeg(std::span<const std::byte> file, Image& image) {
  const ImageSize size = checked(read_jpeg_header(file));
  image.resize(size.height, size.width);
  std::uint8_t* out = image.pixels.data();
  if (cmyk_) {
    four_.resize(image.pixels.size() / 3 * 4);
    out = four_.data();
  }
  if (tjDecompress2(jpeg_.get(), reinterpret_cast<const unsigned char*>(file.data()), file.size(),
                    out, static_cast<int>(size.width), 0, static_cast<int>(size.height),
                    cmyk_ ? TJPF_CMYK : TJPF_RGB, TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS) != 0) {
    // Extraneous bytes between segments are harmless, and some cameras write them.
    const std::string_view reason = tjGetErrorStr2(jpeg_.get());
    if (tjGetErrorCode(jpeg_.get()) != TJERR_WARNING ||
        reason.find("extraneous bytes") == std::string_view::npos) {
      throw bad_jpeg();
    }
  }
  if (cmyk_) {
    // CMYK files store inverted inks, as Adobe's programs do.
    scale_by_fourth(four_, image);
  }
}

void ImageDecoder::decode_png(std::span<const std::byte> file, Image& image) {
  PngHeader png(file);
  const ImageSize size = checked(png.size());
  image.resize(size.height, size.width);
  if (!png.has_alpha()) {
    png.read(PNG_FORMAT_RGB, image.pixels);
    return;
  }
  four_.resize(image.pixels.size() / 3 * 4);
  png.read(PNG_FORMAT_RGBA, four_);
  scale_by_fourth(four_, image);
}

}  // namespace strata::io
