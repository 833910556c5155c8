#include "files/input_stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/user_file.hpp"

namespace strata::io {

InputStream::InputStream(std::filesystem::path path) : path_(std::move(path)) {
  UserFile input(path_, ExitCode::kData);
  file_ = gzdopen(input.descriptor.get(), "rb");
  if (file_ == nullptr) {
    fail(ExitCode::kData, "cannot open {}: out of memory", path_.string());
  }
  static_cast<void>(input.descriptor.release());
  gzbuffer(file_, 1U << 20U);
  if (gzdirect(file_) != 0) {
    known_size_ = input.size_bytes;
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

std::size_t InputStream::append_to(std::string& text, std::size_t bytes) {
  const std::size_t kept = text.size();
  text.resize(kept + bytes);
  const std::size_t count = read(std::as_writable_bytes(std::span(text).subspan(kept)));
  text.resize(kept + count);
  return count;
}

std::string InputStream::read_whole(std::int64_t most_bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::string text;
  for (std::size_t count = kPiece; count == kPiece;) {
    count = append_to(text, kPiece);
    if (std::cmp_greater(text.size(), most_bytes)) {
      fail(ExitCode::kData, "{} has more than {}, which is too much for such a file",
           path_.string(), bytes_text(most_bytes));
    }
  }
  return text;
}

}  // namespace strata::io
