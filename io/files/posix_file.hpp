#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace strata::io {

/// A file open for writing at chosen offsets. All failures are Error(kData).
class PosixFile {
 public:
  PosixFile() = default;
  /// Opens an existing file.
  explicit PosixFile(std::filesystem::path path);
  ~PosixFile();
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;
  PosixFile(PosixFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  PosixFile& operator=(PosixFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Has the operating system put the file on disk, and closes it.
  void finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A whole file mapped into memory to be read.
class MappedFile {
 public:
  /// Throws: Error(kData).
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace strata::io
