#include "images/exif.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

namespace strata::io {
namespace {

enum class ByteOrder { kBig, kLittle };

/// An unsigned number of `bytes` bytes; nothing where it does not lie within the data.
std::optional<std::size_t> number_at(std::span<const std::byte> data, std::size_t at,
                                     std::size_t bytes, ByteOrder order) {
  if (at > data.size() || bytes > data.size() - at) {
    return std::nullopt;
  }
  std::size_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::size_t next = order == ByteOrder::kBig ? at + i : at + bytes - 1 - i;
    value = value << 8U | std::to_integer<std::size_t>(data[next]);
  }
  return value;
}

/// The orientation in a TIFF header and the directory that it names.
int orientation_in(std::span<const std::byte> tiff) {
  constexpr std::size_t kEntryBytes = 12;
  constexpr std::size_t kOrientation = 274;
  const ByteOrder order =
      !tiff.empty() && tiff[0] == std::byte{'I'} ? ByteOrder::kLittle : ByteOrder::kBig;
  const std::size_t directory = number_at(tiff, 4, 4, order).value_or(tiff.size());
  const std::size_t entries = number_at(tiff, directory, 2, order).value_or(0);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (number_at(tiff, entry, 2, order) == kOrientation) {
      const std::size_t value = number_at(tiff, entry + 8, 2, order).value_or(1);
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
  }
  return 1;
}

}  // namespace

int exif_orientation(std::span<const std::byte> file) {
  using namespace std::string_view_literals;
  constexpr std::string_view kExif = "Exif\0\0"sv;
  constexpr std::size_t kApplication1 = 0xFFE1;
  constexpr std::size_t kScan = 0xFFDA;
  for (std::size_t at = 2;;) {
    const std::size_t marker = number_at(file, at, 2, ByteOrder::kBig).value_or(kScan);
    const std::size_t length = number_at(file, at + 2, 2, ByteOrder::kBig).value_or(0);
    if (marker < 0xFF00 || marker == kScan || length < 2 || length > file.size() - at - 2) {
      return 1;
    }
    const std::span<const std::byte> data = file.subspan(at + 4, length - 2);
    const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
    if (marker == kApplication1 && text.starts_with(kExif)) {
      return orientation_in(data.subspan(kExif.size()));
    }
    at += 2 + length;
  }
}

void orient(const Image& stored, int orientation, Image& shown) {
  const bool swaps = swaps_sides(orientation);
  const bool flips_rows =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool flips_columns =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  shown.resize(swaps ? stored.width : stored.height, swaps ? stored.height : stored.width);
  auto out = shown.pixels.begin();
  for (std::int64_t y = 0; y < shown.height; ++y) {
    for (std::int64_t x = 0; x < shown.width; ++x) {
      const std::int64_t row = swaps ? x : y;
      const std::int64_t column = swaps ? y : x;
      const std::int64_t from = (flips_rows ? stored.height - 1 - row : row) * stored.width +
                                (flips_columns ? stored.width - 1 - column : column);
      out = std::copy_n(stored.pixels.begin() + 3 * from, 3, out);
    }
  }
}

}  // namespace strata::io
