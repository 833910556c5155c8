#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::io {

/// The size of a regular file; nothing where there is none of this name.
/// Throws: Error where something else has the name, FileSystemError where the system does not say.
[[nodiscard]] std::optional<std::int64_t> regular_file_bytes(const std::filesystem::path& path,
                                                             ExitCode code);

/// Calls fsync on a file, or on a directory, so that its entries are on disk. Throws: Error.
void sync_file(const std::filesystem::path& path, ExitCode code);

/// Renames; the directory is not synced. Throws: Error.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode code);

/// Creates or replaces a file and calls fsync; follows no symbolic link.
/// Throws: FileSystemError.
void write_whole_file(const std::filesystem::path& path, std::string_view text, ExitCode code);

/// An owned file descriptor; errno says why a call failed.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// Opens with `flags` of open(2) and O_CLOEXEC (O_CREAT: mode 0666); is_open() tells whether that
  /// succeeded.
  FileDescriptor(const std::filesystem::path& path, int flags);
  explicit FileDescriptor(int value) : value_(value) {}
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
  /// Hands the descriptor over to the caller.
  [[nodiscard]] int release() { return std::exchange(value_, -1); }
  /// False where closing fails.
  bool close();

 private:
  int value_ = -1;
};

/// A regular file open for reading at chosen offsets.
class InputFile {
 public:
  /// Throws: Error where there is no regular file, FileSystemError where it cannot be opened.
  InputFile(std::filesystem::path path, ExitCode code);

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Fills `bytes`. Throws: FileSystemError; Error where the file ends early.
  void read_at(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  ExitCode code_;
  FileDescriptor descriptor_;
  std::int64_t size_ = 0;
};

/// A file open for writing at chosen offsets. All failures are Error(kData).
class PosixFile {
 public:
  PosixFile() = default;
  /// Opens an existing file; a symbolic link is refused.
  explicit PosixFile(std::filesystem::path path);

  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Starts to put bytes that were written on disk; only a hint.
  void begin_sync(std::int64_t offset, std::int64_t bytes) const;
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
