#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "import/pending_file.hpp"

namespace strata::io {

inline constexpr const char* kStandardInput = "standard input";

/// The names of imported files without their directories, as in "a.txt, b.txt"; a copy of standard
/// input is called that.
[[nodiscard]] inline std::string joined_file_names(
    const std::vector<std::filesystem::path>& files) {
  std::string names;
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string();
    names += names.empty() ? "" : ", ";
    names += kind_of_file(name) == ImportedFile::kPending ? kStandardInput : name;
  }
  return names;
}

}  // namespace strata::io
