#include "exchange/zip_file.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <fmt/format.h>
#include <zlib.h>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/tensor_files.hpp"

#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

// Values that stand for "see the 64-bit field". Source: PKWARE, APPNOTE.TXT, ".ZIP file format".
constexpr std::uint64_t kIn64Bits = 0xFFFFFFFF;
constexpr std::uint32_t kEntry = 0x02014B50;
constexpr std::uint32_t kLocalHeader = 0x04034B50;
constexpr std::uint32_t kEnd = 0x06054B50;
constexpr std::uint32_t kEnd64 = 0x06064B50;
constexpr std::uint32_t kEnd64Locator = 0x07064B50;

/// Reads numbers at checked places.
class ZipReader {
 public:
  ZipReader(const fs::path& path, std::span<const std::byte> file) : path_(path), file_(file) {}

  [[noreturn]] void refuse(const std::string& why) const {
    fail(ExitCode::kData, "{} is no good zip file of torch.save(): {}; copy it again",
         path_.string(), why);
  }

  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t at, std::uint64_t count) const {
    if (at > file_.size() || count > file_.size() - at) {
      refuse(
          fmt::format("it ends at byte {}, within {} bytes at byte {}", file_.size(), count, at));
    }
    return file_.subspan(at, count);
  }

  template <typename T>
  [[nodiscard]] T at(std::uint64_t place) const {
    return load<T>(bytes(place, sizeof(T)).data());
  }

  [[nodiscard]] std::string text(std::uint64_t place, std::uint64_t count) const {
    const std::span<const std::byte> found = bytes(place, count);
    return {reinterpret_cast<const char*>(found.data()), found.size()};
  }

  /// Where the record at the end of the file begins: before a comment of unknown length.
  [[nodiscard]] std::uint64_t end_record() const {
    constexpr std::uint64_t kRecord = 22;
    constexpr std::uint64_t kMostComment = 65535;
    for (std::uint64_t comment = 0; comment <= kMostComment; ++comment) {
      if (file_.size() < kRecord + comment) {
        break;
      }
      const std::uint64_t place = file_.size() - kRecord - comment;
      if (at<std::uint32_t>(place) == kEnd) {
        return place;
      }
    }
    refuse("it has no directory at its end, so it is truncated");
  }

 private:
  const fs::path& path_;
  std::span<const std::byte> file_;
};

std::uint32_t crc_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{8} << 20U;
  uLong crc = 0;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    release_pages(piece);
  }
  return static_cast<std::uint32_t>(crc);
}

/// A number of an entry that the entry's extra field holds where it needs 64 bits.
class Fields64 {
 public:
  Fields64(const ZipReader& zip, std::uint64_t extra, std::uint64_t bytes) : zip_(zip) {
    constexpr std::uint16_t kTag = 1;
    constexpr std::uint64_t kHead = 4;
    for (std::uint64_t at = extra; at + kHead <= extra + bytes;) {
      const std::uint64_t size = zip.at<std::uint16_t>(at + 2);
      if (zip.at<std::uint16_t>(at) == kTag) {
        next_ = at + kHead;
        return;
      }
      at += kHead + size;
    }
  }

  [[nodiscard]] std::uint64_t resolve(std::uint64_t value) {
    if (value != kIn64Bits || !next_) {
      return value;
    }
    const std::uint64_t place = *next_;
    next_ = place + sizeof(std::uint64_t);
    return zip_.at<std::uint64_t>(place);
  }

 private:
  const ZipReader& zip_;
  std::optional<std::uint64_t> next_;
};

}  // namespace

std::map<std::string, std::span<const std::byte>> zip_entries(const fs::path& path,
                                                              std::span<const std::byte> file) {
  const ZipReader zip(path, file);
  const std::uint64_t end = zip.end_record();
  std::uint64_t count = zip.at<std::uint16_t>(end + 10);
  std::uint64_t place = zip.at<std::uint32_t>(end + 16);
  constexpr std::uint64_t kLocator = 20;
  constexpr std::uint64_t kManyEntries = 0xFFFF;
  if ((place == kIn64Bits || count == kManyEntries) && end >= kLocator &&
      zip.at<std::uint32_t>(end - kLocator) == kEnd64Locator) {
    const auto end64 = zip.at<std::uint64_t>(end - kLocator + 8);
    if (zip.at<std::uint32_t>(end64) != kEnd64) {
      zip.refuse("its 64-bit directory is not where it says");
    }
    count = zip.at<std::uint64_t>(end64 + 32);
    place = zip.at<std::uint64_t>(end64 + 48);
  }
  std::map<std::string, std::span<const std::byte>> entries;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (zip.at<std::uint32_t>(place) != kEntry) {
      zip.refuse(fmt::format("entry {} of its directory is damaged", i));
    }
    const std::uint64_t name_bytes = zip.at<std::uint16_t>(place + 28);
    const std::uint64_t extra_bytes = zip.at<std::uint16_t>(place + 30);
    const std::uint64_t comment_bytes = zip.at<std::uint16_t>(place + 32);
    constexpr std::uint64_t kHead = 46;
    const std::string name = zip.text(place + kHead, name_bytes);
    Fields64 fields(zip, place + kHead + name_bytes, extra_bytes);
    const std::uint64_t size = fields.resolve(zip.at<std::uint32_t>(place + 24));
    const std::uint64_t stored = fields.resolve(zip.at<std::uint32_t>(place + 20));
    const std::uint64_t header = fields.resolve(zip.at<std::uint32_t>(place + 42));
    if (zip.at<std::uint16_t>(place + 10) != 0 || size != stored) {
      zip.refuse(fmt::format("its entry {} is compressed", printable(name)));
    }
    if (zip.at<std::uint32_t>(header) != kLocalHeader) {
      zip.refuse(fmt::format("its entry {} is not where the directory says", printable(name)));
    }
    constexpr std::uint64_t kLocalHead = 30;
    const std::uint64_t data = header + kLocalHead + zip.at<std::uint16_t>(header + 26) +
                               zip.at<std::uint16_t>(header + 28);
    const std::span<const std::byte> bytes = zip.bytes(data, size);
    // Some writers leave the checksum out, as 0.
    const auto checksum = zip.at<std::uint32_t>(place + 16);
    if (checksum != 0 && crc_of(bytes) != checksum) {
      zip.refuse(fmt::format("its entry {} does not match its checksum", printable(name)));
    }
    if (!entries.emplace(name, bytes).second) {
      zip.refuse(fmt::format("it has the entry {} twice", printable(name)));
    }
    place += kHead + name_bytes + extra_bytes + comment_bytes;
  }
  return entries;
}

}  // namespace strata::io
