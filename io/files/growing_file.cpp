#include "strata/io/growing_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/posix_file.hpp"

namespace strata::io {

void GrowingFile::rewind(const std::function<void()>& restart) {
  if (done_ > 0) {
    restart();
  }
  done_ = 0;
}

void GrowingFile::read(const std::function<void()>& restart,
                       const std::function<void(std::string_view)>& line) {
  const auto refuse = [&] {
    throw FileSystemError(code_, errno,
                          fmt::format("cannot read {}: {}; check its permissions", path_.string(),
                                      std::strerror(errno)));
  };
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const FileDescriptor file(path_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (!file.is_open() && errno == ENOENT) {
    rewind(restart);
    return;
  }
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    refuse();
  }
  if (!S_ISREG(status.st_mode)) {
    fail(code_, "{} is not a regular file; move it away", path_.string());
  }
  // An inode number may be used again: the bytes that were read ended with a line feed.
  char last = '\n';
  if (status.st_ino != inode_ || status.st_size < done_ ||
      (done_ > 0 && ::pread(file.get(), &last, 1, done_ - 1) == 1 && last != '\n')) {
    rewind(restart);
  }
  inode_ = status.st_ino;
  constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  std::string text;
  for (;;) {
    const std::size_t before = text.size();
    text.resize(before + kBlockBytes);
    const ssize_t got = ::pread(file.get(), text.data() + before, kBlockBytes,
                                done_ + static_cast<std::int64_t>(before));
    if (got < 0 && errno != EINTR) {
      refuse();
    }
    text.resize(before + static_cast<std::size_t>(got > 0 ? got : 0));
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos;
         end = text.find('\n', begin)) {
      line(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
    done_ += static_cast<std::int64_t>(begin);
    text.erase(0, begin);
    if (got == 0) {
      return;
    }
  }
}

}  // namespace strata::io
