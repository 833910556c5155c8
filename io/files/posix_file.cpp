#include "files/posix_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/core/error.hpp"

namespace strata::io {

FileDescriptor::FileDescriptor(const std::filesystem::path& path, int flags)
    : value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}

bool FileDescriptor::close() {
  return value_ < 0 || ::close(std::exchange(value_, -1)) == 0;
}

PosixFile::PosixFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(path_, O_WRONLY) {
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
  const FileDescriptor descriptor(path, O_RDONLY);
  if (!descriptor.is_open()) {
    fail(ExitCode::kData, "cannot open {}: {}", path.string(), std::strerror(errno));
  }
  struct stat status {};
  void* address = MAP_FAILED;
  if (::fstat(descriptor.get(), &status) == 0) {
    address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED,
                     descriptor.get(), 0);
  }
  if (address == MAP_FAILED) {
    fail(ExitCode::kData, "cannot map {} into memory: {}", path.string(), std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(status.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace strata::io
