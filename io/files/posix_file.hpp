#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace strata::io {

/// An owned file descriptor; errno says why a call failed.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// Opens with `flags` of open(2) and O_CLOEXEC (O_CREAT: mode 0666); is_open() tells whether that succeeded.
  FileDescriptor(const std::filesystem::path& path, int flags);
  ~FileDescriptor() { close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  [[nodiscard]] bool is_open() const { return value_ >= 0; }
  [[nodiscard]] int get() const { return value_; }
  /// False where closing fails.
  bool close();

 private:
  int value_ = -1;
};

/// A file open for writing at chosen offsets. All failures are Error(kData).
class PosixFile {
 public:
  PosixFile() = default;
  /// Opens an existing file.
  explicit PosixFile(std::filesystem::path path);

  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Calls fsync and closes the file.
  void finish();

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
};

/// A whole file mapped into memory, read-only.
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
