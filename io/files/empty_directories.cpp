#include "strata/io/empty_directories.hpp"

#include <system_error>

namespace strata::io {

EmptyDirectories::EmptyDirectories(const std::filesystem::path& path) {
  std::error_code error;
  for (std::filesystem::path at = path;
       !at.empty() && !std::filesystem::exists(at, error) && !error; at = at.parent_path()) {
    absent_.push_back(at);
  }
}

EmptyDirectories::~EmptyDirectories() {
  std::error_code error;
  for (auto at = absent_.begin(); at != absent_.end() && !error; ++at) {
    std::error_code absent;
    if (std::filesystem::is_directory(*at, absent)) {
      std::filesystem::remove(*at, error);
    }
  }
}

}  // namespace strata::io
