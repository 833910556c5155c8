#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace strata::fuzz {

/// A regular file in memory that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes)
      : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("cannot write a file in memory");
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace strata::fuzz
