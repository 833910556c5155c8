#include "files/binary_file.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::io {

BinaryFile::BinaryFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  if (!std::filesystem::exists(status)) {
    fail(ExitCode::kData, "{} does not exist", path_.string());
  }
  if (!std::filesystem::is_regular_file(status)) {
    fail(ExitCode::kData, "{} is no regular file", path_.string());
  }
  stream_.open(path_, std::ios::binary);
  if (!stream_) {
    fail(ExitCode::kData, "cannot open {}: {}", path_.string(), std::strerror(errno));
  }
  size_ = static_cast<std::int64_t>(std::filesystem::file_size(path_));
}

void BinaryFile::read(std::span<std::byte> bytes) {
  stream_.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  if (stream_.gcount() != std::ssize(bytes)) {
    fail(ExitCode::kData, "cannot read {} to its end of {} bytes; was it changed meanwhile?",
         path_.string(), size_);
  }
}

void BinaryFile::skip(std::int64_t bytes) {
  stream_.seekg(bytes, std::ios::cur);
}

}  // namespace strata::io
