#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata::io {

/// The names of imported files without their directories, as in "a.txt, b.txt".
[[nodiscard]] inline std::string joined_file_names(
    const std::vector<std::filesystem::path>& files) {
  std::string names;
  for (const std::filesystem::path& file : files) {
    names += (names.empty() ? "" : ", ") + file.filename().string();
  }
  return names;
}

}  // namespace strata::io
