#pragma once

#include <filesystem>
#include <system_error>
#include <utility>

namespace strata::io {

/// Removes a directory, and all that is in it, in its destructor.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace strata::io
