#include "files/user_file.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/core/text.hpp"
#include "strata/io/text_file.hpp"

#include "files/input_stream.hpp"

namespace strata::io {
namespace {

void refuse_special(mode_t mode) {
  const char* kind = S_ISDIR(mode)    ? "a directory"
                     : S_ISFIFO(mode) ? "a FIFO (named pipe)"
                     : S_ISSOCK(mode) ? "a socket"
                     : S_ISCHR(mode)  ? "a character device"
                     : S_ISBLK(mode)  ? "a block device"
                                      : "a special file";
  if (!S_ISREG(mode)) {
    throw BadInput(fmt::format("is {}, a regular file was expected", kind));
  }
}

[[noreturn]] void refuse_unopened(int error) {
  throw BadInput(error == ENOENT ? "does not exist"
                                 : fmt::format("cannot be opened: {}", std::strerror(error)),
                 error);
}

template <typename Action>
auto with_name(const std::filesystem::path& path, ExitCode code, Action&& action) {
  try {
    return action();
  } catch (const BadInput& problem) {
    throw FileSystemError(code, problem.number(),
                          fmt::format("{} {}", path.string(), problem.what()));
  }
}

}  // namespace

UserFile::UserFile(std::filesystem::path file) : path(std::move(file)) {
  struct stat status {};
  // Opening a device can act on it, so its kind is looked up first.
  if (::stat(path.c_str(), &status) != 0) {
    refuse_unopened(errno);
  }
  refuse_special(status.st_mode);
  descriptor = FileDescriptor(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!descriptor.is_open() || ::fstat(descriptor.get(), &status) != 0) {
    refuse_unopened(errno);
  }
  refuse_special(status.st_mode);
  size_bytes = status.st_size;
}

UserFile::UserFile(const std::filesystem::path& file, ExitCode code)
    : UserFile(with_name(file, code, [&] { return UserFile(file); })) {}

std::size_t UserFile::read(std::span<std::byte> bytes) const {
  std::size_t total = 0;
  while (total < bytes.size()) {
    const ssize_t got = ::read(descriptor.get(), bytes.data() + total, bytes.size() - total);
    if (got < 0 && errno != EINTR) {
      throw BadInput(fmt::format("cannot be read: {}", std::strerror(errno)), errno);
    }
    if (got == 0) {
      break;
    }
    total += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return total;
}

void UserFile::read_exactly(std::span<std::byte> bytes) const {
  std::string reason = "was it changed meanwhile?";
  std::size_t count = 0;
  try {
    count = read(bytes);
  } catch (const BadInput& problem) {
    reason = fmt::format("it {}", problem.what());
  }
  if (count != bytes.size()) {
    fail(ExitCode::kData, "cannot read {} to its end of {} bytes; {}", path.string(), size_bytes,
         reason);
  }
}

void UserFile::skip(std::int64_t bytes) const {
  ::lseek(descriptor.get(), bytes, SEEK_CUR);
}

std::string read_input(const std::filesystem::path& path, std::int64_t most_bytes, ExitCode code) {
  return with_name(path, code, [&] {
    const UserFile file(path);
    const auto refuse = [&] {
      throw BadInput(
          fmt::format("has more than {}, which is too much for such a file; name the "
                      "right file",
                      bytes_text(most_bytes)));
    };
    if (file.size_bytes > most_bytes) {
      refuse();
    }
    // A file of /proc has no size, and a file can grow.
    std::string text(static_cast<std::size_t>(file.size_bytes) + 1, '\0');
    for (std::size_t done = 0;;) {
      done += file.read(std::as_writable_bytes(std::span(text)).subspan(done));
      if (std::cmp_greater(done, most_bytes)) {
        refuse();
      }
      if (done < text.size()) {
        text.resize(done);
        constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
        text.erase(0, text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
        return text;
      }
      text.resize(2 * text.size());
    }
  });
}

}  // namespace strata::io
