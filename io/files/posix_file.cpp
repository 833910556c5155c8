#include "files/posix_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/io/mapped_files.hpp"
#include "strata/io/text_file.hpp"

#include "files/user_file.hpp"

namespace strata::io {

FileDescriptor::FileDescriptor(const std::filesystem::path& path, int flags)
    : value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}

namespace {

[[noreturn]] void fail_call(ExitCode code, const char* what, const std::filesystem::path& path) {
  throw FileSystemError(code, errno,
                        fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

void require_regular(const struct stat& status, const std::filesystem::path& path, ExitCode code) {
  if (!S_ISREG(status.st_mode)) {
    fail(code, "{} is not a regular file", path.string());
  }
}

}  // namespace

std::optional<std::int64_t> regular_file_bytes(const std::filesystem::path& path, ExitCode code) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::nullopt;
    }
    fail_call(code, "read", path);
  }
  require_regular(status, path, code);
  return status.st_size;
}

bool write_fully(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

void write_whole_file(const std::filesystem::path& path, std::string_view text, ExitCode code) {
  FileDescriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (!file.is_open() || !write_fully(file.get(), text)) {
    fail_call(code, "write", path);
  }
  if (::fsync(file.get()) != 0 || !file.close()) {
    fail_call(code, "put on disk", path);
  }
}

void sync_file(const std::filesystem::path& path, ExitCode code) {
  const FileDescriptor file(path, O_RDONLY);
  if (!file.is_open()) {
    fail(code, "cannot open {} to sync it: {}", path.string(), std::strerror(errno));
  }
  if (::fsync(file.get()) != 0) {
    fail(code, "cannot put {} on disk: {}", path.string(), std::strerror(errno));
  }
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to,
                 ExitCode code) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail(code, "cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
  }
}

InputFile::InputFile(std::filesystem::path path, ExitCode code)
    // A FIFO would block without O_NONBLOCK.
    : path_(std::move(path)), code_(code), descriptor_(path_, O_RDONLY | O_NONBLOCK) {
  struct stat status {};
  if (!descriptor_.is_open() && (errno == ENOENT || errno == ENOTDIR)) {
    fail(code_, "{} does not exist", path_.string());
  }
  if (!descriptor_.is_open() || ::fstat(descriptor_.get(), &status) != 0) {
    fail_call(code_, "open", path_);
  }
  require_regular(status, path_, code_);
  size_ = status.st_size;
}

void InputFile::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno != EINTR) {
      fail_call(code_, "read", path_);
    }
    if (count == 0) {
      fail(code_, "{} ends at byte {}, {} were expected", path_.string(), offset, size_);
    }
    const auto got = std::max<ssize_t>(count, 0);
    offset += got;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

bool FileDescriptor::close() {
  return value_ < 0 || ::close(std::exchange(value_, -1)) == 0;
}

PosixFile::PosixFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(path_, O_WRONLY | O_NOFOLLOW) {
  if (!descriptor_.is_open()) {
    fail(ExitCode::kData, "cannot open {} for writing: {}", path_.string(), std::strerror(errno));
  }
}

void PosixFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail(ExitCode::kData, "cannot write {}: {}; free some space or choose another --output",
           path_.string(), std::strerror(errno));
    }
    offset += written;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void PosixFile::begin_sync(std::int64_t offset, std::int64_t bytes) const {
  static_cast<void>(::sync_file_range(descriptor_.get(), offset, bytes, SYNC_FILE_RANGE_WRITE));
}

void PosixFile::finish() {
  const bool synced = ::fsync(descriptor_.get()) == 0;
  const int sync_error = errno;
  const bool closed = descriptor_.close();
  if (!synced || !closed) {
    fail(ExitCode::kData, "cannot put {} on disk: {}", path_.string(),
         std::strerror(synced ? errno : sync_error));
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const UserFile file(path, ExitCode::kData);
  const auto size = static_cast<std::size_t>(file.size_bytes);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor.get(), 0);
  if (address == MAP_FAILED) {
    fail_call(ExitCode::kData, "map into memory", path);
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
  add_mapped_file(bytes_, path.string());
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    remove_mapped_file(bytes_);
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace strata::io
