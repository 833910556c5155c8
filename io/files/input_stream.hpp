#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <zlib.h>

namespace strata::io {

/// A file read sequentially; files compressed with gzip or zstd are decompressed.
class InputStream {
 public:
  /// Reads from byte `begin` on; pre: this is 0 for a compressed file.
  /// Throws: Error(kData) where it cannot be opened or is no regular file.
  explicit InputStream(std::filesystem::path path, std::int64_t begin = 0);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Size of an uncompressed file; -1 for a compressed one.
  [[nodiscard]] std::int64_t known_size() const { return known_size_; }

  /// Fills `bytes` up to the end of the file; returns the number of bytes read.
  /// Throws: Error(kData) where the file cannot be read or its compressed data are damaged or
  /// truncated.
  std::size_t read(std::span<std::byte> bytes);
  /// Appends up to `bytes` of the file to `text`; returns the number of bytes read.
  std::size_t append_to(std::string& text, std::size_t bytes);
  /// The rest of the file, decompressed.
  /// Throws: Error(kData) as read(), and for more than `most_bytes`.
  [[nodiscard]] std::string read_whole(std::int64_t most_bytes);

 private:
  class Zstd;

  std::filesystem::path path_;
  gzFile file_ = nullptr;  ///< null where zstd_ reads the file
  std::unique_ptr<Zstd> zstd_;
  std::int64_t known_size_ = -1;
};

}  // namespace strata::io
