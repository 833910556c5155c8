#include "import/pending_file.hpp"

#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "hdf5/hdf5_file.hpp"

namespace strata::io {
namespace {

constexpr const char* kEnding = ".partial";

}  // namespace

PendingFile::PendingFile(std::filesystem::path final_path) : final_(std::move(final_path)) {
  std::random_device random;
  temporary_ = fmt::format("{}.{:08x}{:08x}{}", final_.string(), random(), random(), kEnding);
  const FileDescriptor created(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!created.is_open()) {
    fail(ExitCode::kData, "cannot create {}: {}; choose another --output", temporary_.string(),
         std::strerror(errno));
  }
}

PendingFile::~PendingFile() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
}

void PendingFile::publish() {
  hdf5::rename_file(temporary_, final_, ExitCode::kData);
  temporary_.clear();
}

bool is_pending(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(kEnding) &&
         (name.starts_with("train") || name.starts_with("test") || name.starts_with("tokens"));
}

}  // namespace strata::io
