#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "files/user_file.hpp"

namespace strata::io {

/// A file read sequentially. All failures are Error(kData).
class BinaryFile {
 public:
  explicit BinaryFile(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::int64_t size() const { return file_.size_bytes; }

  /// Fills `bytes`. Throws: also where the file ends early.
  void read(std::span<std::byte> bytes);
  void skip(std::int64_t bytes);

 private:
  std::filesystem::path path_;
  UserFile file_;
};

}  // namespace strata::io
