#include "files/input_stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::io {

InputStream::InputStream(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  if (!std::filesystem::exists(status)) {
    fail(ExitCode::kData, "{} does not exist", path_.string());
  }
  if (std::filesystem::is_directory(status)) {
    fail(ExitCode::kData, "{} is a directory, a file was expected", path_.string());
  }
  file_ = gzopen(path_.c_str(), "rbe");
  if (file_ == nullptr) {
    fail(ExitCode::kData, "cannot open {}: {}", path_.string(), std::strerror(errno));
  }
  gzbuffer(file_, 1U << 20U);
  if (gzdirect(file_) != 0 && std::filesystem::is_regular_file(status)) {
    known_size_ = static_cast<std::int64_t>(std::filesystem::file_size(path_));
  }
}

InputStream::~InputStream() {
  gzclose(file_);
}

std::size_t InputStream::read(std::span<std::byte> bytes) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  std::size_t total = 0;
  while (total < bytes.size()) {
    const std::size_t wanted = std::min(bytes.size() - total, kMostAtOnce);
    const int count = gzread(file_, bytes.data() + total, static_cast<unsigned>(wanted));
    int code = Z_OK;
    const char* reason = gzerror(file_, &code);
    if (code == Z_BUF_ERROR) {
      fail(ExitCode::kData, "the compressed file {} was cut short; fetch it again", path_.string());
    }
    if (count < 0) {
      fail(ExitCode::kData, "cannot read {}: {}", path_.string(),
           code == Z_ERRNO ? std::strerror(errno) : reason);
    }
    if (count == 0) {
      break;
    }
    total += static_cast<std::size_t>(count);
  }
  return total;
}

}  // namespace strata::io
