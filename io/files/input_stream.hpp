#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include <zlib.h>

namespace strata::io {

/// A file read from beginning to end; gzip-compressed ones are seen uncompressed.
class InputStream {
 public:
  /// Throws: Error(kData) where it cannot be opened.
  explicit InputStream(std::filesystem::path path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Uncompressed size where it can be known without reading: that of a plain file; else -1.
  [[nodiscard]] std::int64_t known_size() const { return known_size_; }

  /// Fills `bytes` as far as the file goes; returns how many were read.
  /// Throws: Error(kData) where the file cannot be read, or its compressed data is damaged or cut
  /// short.
  std::size_t read(std::span<std::byte> bytes);

 private:
  std::filesystem::path path_;
  gzFile file_ = nullptr;
  std::int64_t known_size_ = -1;
};

}  // namespace strata::io
