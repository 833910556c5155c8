#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "strata/core/error.hpp"

namespace strata::io {

/// Reads the lines of a text file that another process appends to or replaces, also over a network
/// file system: by polling.
class GrowingFile {
 public:
  GrowingFile(std::filesystem::path path, ExitCode code) : path_(std::move(path)), code_(code) {}

  /// Passes each complete line that came since the last call to `line`, without its line feed. A
  /// last line without one waits for its end. NULs and long lines are as for read_lines(). Where
  /// the file was replaced, truncated or deleted, `restart` is called first, and reading begins
  /// anew. Throws: Error(code) where something else has the name, FileSystemError(code) where it
  /// cannot be read.
  void read(const std::function<void()>& restart,
            const std::function<void(std::string_view)>& line);

 private:
  void rewind(const std::function<void()>& restart);

  std::filesystem::path path_;
  ExitCode code_;
  std::uint64_t inode_ = 0;
  std::int64_t done_ = 0;  ///< bytes, up to the last line feed
};

}  // namespace strata::io
