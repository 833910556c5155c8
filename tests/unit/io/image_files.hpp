#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>

#include "data_files.hpp"

/// JPEG and PNG files made for the tests.
namespace strata::io::test {

/// Pixels of red, green and blue that change slowly, so that JPEG keeps them nearly; `number` tells
/// images apart.
inline std::vector<std::uint8_t> picture(std::int64_t height, std::int64_t width,
                                         std::int64_t number) {
  std::vector<std::uint8_t> pixels;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      pixels.push_back(static_cast<std::uint8_t>((20 * number + 3 * y) % 256));
      pixels.push_back(static_cast<std::uint8_t>((90 + 2 * x) % 256));
      pixels.push_back(static_cast<std::uint8_t>((200 - x - y + 7 * number) % 256));
    }
  }
  return pixels;
}

/// A file of PNG; `format` is one of libpng's simplified interface.
template <typename T>
std::string png(const std::vector<T>& pixels, std::int64_t height, std::int64_t width,
                unsigned format, const void* colours = nullptr, unsigned colour_count = 0) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  image.colormap_entries = colour_count;
  std::string file(1 << 20, '\0');
  png_alloc_size_t size = file.size();
  EXPECT_NE(png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, colours), 0)
      << image.message;
  file.resize(size);
  return file;
}

inline std::string png(std::int64_t height, std::int64_t width, std::int64_t number) {
  return png(picture(height, width, number), height, width, PNG_FORMAT_RGB);
}

/// A file of JPEG of high quality.
inline std::string jpeg(const std::vector<std::uint8_t>& pixels, std::int64_t height,
                        std::int64_t width, int format = TJPF_RGB, int subsampling = TJSAMP_444) {
  tjhandle handle = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(handle, pixels.data(), static_cast<int>(width), 0, static_cast<int>(height),
                        format, &bytes, &size, subsampling, 98, 0),
            0)
      << tjGetErrorStr2(handle);
  std::string file(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(handle);
  return file;
}

inline std::string jpeg(std::int64_t height, std::int64_t width, std::int64_t number) {
  return jpeg(picture(height, width, number), height, width);
}

/// A JPEG file with an orientation in Exif data of the byte order 'I' or 'M'.
inline std::string with_orientation(const std::string& file, int orientation, char order) {
  const auto number = [&](std::uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) {
      const int shift = 8 * (order == 'I' ? i : bytes - 1 - i);
      text += static_cast<char>(value >> shift & 0xFFU);
    }
    return text;
  };
  // A header, and a directory of the entries ImageWidth and Orientation.
  const std::string tiff = std::string(2, order) + number(42, 2) + number(8, 4) + number(2, 2) +
                           number(256, 2) + number(4, 2) + number(1, 4) + number(77, 4) +
                           number(274, 2) + number(3, 2) + number(1, 4) +
                           number(static_cast<unsigned>(orientation), 2) + number(0, 6);
  const std::string data = std::string("Exif\0\0", 6) + tiff;
  const std::size_t length = data.size() + 2;
  return file.substr(0, 2) + "\xFF\xE1" + static_cast<char>(length >> 8U) +
         static_cast<char>(length & 0xFFU) + data + file.substr(2);
}

inline void write_image(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  write_file(path, bytes);
}

inline ImportOptions image_options(const std::vector<std::filesystem::path>& directories,
                                   const std::filesystem::path& output, const std::string& split) {
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = ImportFormat::kImages;
  options.inputs = directories;
  options.output = output;
  options.split = split;
  return options;
}

}  // namespace strata::io::test
