#include "files/input_stream.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <unistd.h>
#include <zstd.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/user_file.hpp"

namespace strata::io {

/// Decompresses a file of zstd. Source: RFC 8878.
class InputStream::Zstd {
 public:
  explicit Zstd(UserFile file)
      : file_(std::move(file)), stream_(ZSTD_createDStream()), buffer_(ZSTD_DStreamInSize()) {
    require(stream_ != nullptr, "no memory for a decoder of zstd");
    // Of zstd --long=31; without it a window above 128 MiB is refused.
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31);
  }
  ~Zstd() { ZSTD_freeDStream(stream_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  std::size_t read(std::span<std::byte> bytes) {
    ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
    while (out.pos < out.size) {
      if (in_.pos == in_.size && !has_more_) {
        in_ = {buffer_.data(), file_.read(buffer_), 0};
        if (in_.size == 0) {
          if (!is_whole_) {
            fail(ExitCode::kData, "the compressed file {} was cut short; fetch it again",
                 file_.path.string());
          }
          break;
        }
      }
      const std::size_t left = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(left) != 0) {
        fail(ExitCode::kData, "cannot read {}: {}; fetch it again", file_.path.string(),
             ZSTD_getErrorName(left));
      }
      is_whole_ = left == 0;
      has_more_ = !is_whole_ && out.pos == out.size;
    }
    return out.pos;
  }

 private:
  UserFile file_;
  ZSTD_DStream* stream_;
  std::vector<std::byte> buffer_;
  ZSTD_inBuffer in_{};
  bool is_whole_ = true;   ///< a frame ended here
  bool has_more_ = false;  ///< the decoder may hold what there was no room for
};

InputStream::InputStream(std::filesystem::path path, std::int64_t begin) : path_(std::move(path)) {
  UserFile input(path_, ExitCode::kData);
  constexpr std::array<unsigned char, 4> kZstd{0x28, 0xB5, 0x2F, 0xFD};
  std::array<unsigned char, 4> start{};
  const ssize_t got = ::pread(input.descriptor.get(), start.data(), start.size(), 0);
  if (got == std::ssize(start) && start == kZstd) {
    zstd_ = std::make_unique<Zstd>(std::move(input));
    return;
  }
  file_ = gzdopen(input.descriptor.get(), "rb");
  if (file_ == nullptr) {
    fail(ExitCode::kData, "cannot open {}: out of memory", path_.string());
  }
  static_cast<void>(input.descriptor.release());
  gzbuffer(file_, 1U << 20U);
  if (gzdirect(file_) != 0) {
    known_size_ = input.size_bytes;
  }
  if (begin > 0 && gzseek(file_, begin, SEEK_SET) != begin) {
    fail(ExitCode::kData, "cannot read {} from byte {} on; it has changed", path_.string(), begin);
  }
}

InputStream::~InputStream() {
  if (file_ != nullptr) {
    gzclose(file_);
  }
}

std::size_t InputStream::read(std::span<std::byte> bytes) {
  if (zstd_) {
    return zstd_->read(bytes);
  }
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
