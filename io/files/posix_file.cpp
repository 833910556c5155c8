#include "files/posix_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/core/error.hpp"

namespace strata::io {

PosixFile::PosixFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) {
    fail(ExitCode::kData, "cannot open {} for writing: {}", path_.string(), std::strerror(errno));
  }
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void PosixFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
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
  const int descriptor = std::exchange(descriptor_, -1);
  const bool synced = ::fsync(descriptor) == 0;
  const int sync_error = errno;
  const bool closed = ::close(descriptor) == 0;
  if (!synced || !closed) {
    fail(ExitCode::kData, "cannot put {} on disk: {}", path_.string(),
         std::strerror(synced ? errno : sync_error));
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    fail(ExitCode::kData, "cannot open {}: {}", path.string(), std::strerror(errno));
  }
  struct stat status {};
  void* address = MAP_FAILED;
  if (::fstat(descriptor, &status) == 0) {
    address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED,
                     descriptor, 0);
  }
  const int error = errno;
  ::close(descriptor);
  if (address == MAP_FAILED) {
    fail(ExitCode::kData, "cannot map {} into memory: {}", path.string(), std::strerror(error));
  }
  bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(status.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace strata::io
