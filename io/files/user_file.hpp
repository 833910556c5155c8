#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>

#include "strata/core/error.hpp"

#include "files/posix_file.hpp"

namespace strata::io {

/// Why a user's file cannot be used; the text follows the file's name.
class BadInput : public std::runtime_error {
 public:
  /// `number` is the errno of the call that failed; 0 where none did.
  explicit BadInput(const std::string& text, int number = 0)
      : std::runtime_error(text), number_(number) {}

  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

/// A user's file, open for reading.
struct UserFile {
  /// Opens a regular file, or a symbolic link to one. A FIFO, socket or device is refused without
  /// waiting for it.
  /// Throws: BadInput.
  explicit UserFile(std::filesystem::path path);
  /// Throws: FileSystemError(code) that begins with the path.
  UserFile(const std::filesystem::path& path, ExitCode code);

  /// Fills `bytes` up to the end of the file; returns the number of bytes read.
  /// Throws: BadInput where the file cannot be read.
  std::size_t read(std::span<std::byte> bytes) const;
  /// Fills `bytes`. Throws: Error(kData), also where the file ends early.
  void read_exactly(std::span<std::byte> bytes) const;
  void skip(std::int64_t bytes) const;

  std::filesystem::path path;
  FileDescriptor descriptor;
  std::int64_t size_bytes = 0;  ///< when it was opened
};

}  // namespace strata::io
