#include "strata/io/growing_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/line_cutter.hpp"
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
  std::string block(kBlockBytes, '\0');
  LineCutter cutter;
  for (std::int64_t at = done_;;) {
    const ssize_t got = ::pread(file.get(), block.data(), block.size(), at);
    if (got < 0 && errno != EINTR) {
      refuse();
    }
    if (got == 0) {
      return;
    }
    const auto bytes = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    const std::size_t ended = cutter.add(std::string_view(block).substr(0, bytes), line);
    done_ = ended > 0 ? at + static_cast<std::int64_t>(ended) : done_;
    at += static_cast<std::int64_t>(bytes);
  }
}

}  // namespace strata::io
