#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>

#include "strata/core/error.hpp"

#include "files/posix_file.hpp"

namespace strata::io {

/// Why a user's file cannot be used; the text follows the file's name.
class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A user's file, open for reading.
struct UserFile {
  /// Opens a regular file, or a symbolic link to one. A FIFO, socket or device is refused without
  /// waiting for it.
  /// Throws: BadInput.
  explicit UserFile(const std::filesystem::path& path);
  /// Throws: Error(code) that begins with the path.
  UserFile(const std::filesystem::path& path, ExitCode code);

  /// Fills `bytes` up to the end of the file; returns the number of bytes read.
  /// Throws: BadInput where the file cannot be read.
  std::size_t read(std::span<std::byte> bytes) const;

  FileDescriptor descriptor;
  std::int64_t size_bytes = 0;  ///< when it was opened
};

}  // namespace strata::io
