#pragma once

#include <filesystem>
#include <vector>

namespace strata::io {

/// Removes in its destructor those directories on the path that did not exist when it was
/// constructed and are empty.
class EmptyDirectories {
 public:
  explicit EmptyDirectories(const std::filesystem::path& path);
  ~EmptyDirectories();
  EmptyDirectories(const EmptyDirectories&) = delete;
  EmptyDirectories& operator=(const EmptyDirectories&) = delete;

 private:
  std::vector<std::filesystem::path> absent_;  ///< the innermost first
};

}  // namespace strata::io
