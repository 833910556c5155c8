#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "files/user_file.hpp"

namespace strata::io {

/// Interleaved RGB bytes, row by row.
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels;

  void resize(std::int64_t new_height, std::int64_t new_width) {
    height = new_height;
    width = new_width;
    pixels.resize(static_cast<std::size_t>(3 * height * width));
  }
};

/// Height and width in pixels, as a file's header says.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  [[nodiscard]] std::int64_t pixels() const { return height * width; }
};

/// Why a file is not a usable image; the text follows the file's name.
class BadImage : public BadInput {
 public:
  using BadInput::BadInput;
};

/// Decodes JPEG and PNG files, detected by their magic bytes. Not thread-safe.
class ImageDecoder {
 public:
  /// Decoding takes 3 bytes a pixel, up to 7 with transparency and up to 9 for a progressive JPEG;
  /// 3 more for a JPEG that its Exif data turn.
  static constexpr std::int64_t kMostPixels = std::int64_t{1} << 26;

  ImageDecoder();

  /// Reads the header only.
  /// Throws: BadImage for a file that is not an image, and for more than kMostPixels.
  [[nodiscard]] ImageSize size_of(std::span<const std::byte> file);
  /// Converts grey to RGB, composites transparent pixels on black, and turns a JPEG as its Exif
  /// data say. Throws: BadImage for a file that is not an image, is truncated or damaged, or has
  /// more than 8 bits per channel.
  void decode(std::span<const std::byte> file, Image& image);
  /// Frees the buffers that decode() keeps for the next image.
  void release_buffers() {
    four_ = {};
    stored_ = {};
  }

 private:
  void renew_jpeg();
  ImageSize read_jpeg_header(std::span<const std::byte> file);
  [[nodiscard]] BadImage bad_jpeg();
  void decode_jpeg(std::span<const std::byte> file, Image& image);
  void decode_stored_jpeg(std::span<const std::byte> file, Image& image);
  void decode_png(std::span<const std::byte> file, Image& image);

  struct HandleDelete {
    void operator()(void* handle) const;
  };
  std::unique_ptr<void, HandleDelete> jpeg_;
  bool cmyk_ = false;               ///< of the JPEG whose header was read last
  std::vector<std::uint8_t> four_;  ///< bytes of pixels with a fourth channel
  Image stored_;                    ///< an image before it is turned
};

}  // namespace strata::io
