#include "shared_memory.hpp"

#include <algorithm>
#include <cstring>

#include <link.h>

#include "blocks.hpp"

// What kernels declare as memory whose size is given at launch.
namespace strata::ops::cuda {
extern thread_local double memory_of_block[standin::kMostSharedBytes / sizeof(double)];
alignas(256) thread_local double memory_of_block[standin::kMostSharedBytes / sizeof(double)];
}  // namespace strata::ops::cuda

namespace standin {
namespace {

constexpr unsigned char kGarbage = 0xFF;
constexpr std::size_t kPieceBytes = 1024;

bool is_garbage(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{kGarbage}; });
}

/// The calling thread's thread_local memory of the executable, which is the first object.
std::span<std::byte> thread_local_memory() {
  std::span<std::byte> found;
  const auto look = [](dl_phdr_info* object, std::size_t, void* result) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& header = object->dlpi_phdr[i];
      if (header.p_type == PT_TLS) {
        *static_cast<std::span<std::byte>*>(result) = {
            static_cast<std::byte*>(object->dlpi_tls_data), header.p_memsz};
      }
    }
    return 1;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

}  // namespace

SharedMemory::SharedMemory(std::size_t asked_bytes)
    : asked_bytes_(asked_bytes), all_(thread_local_memory()) {}

void SharedMemory::spoil() {
  if (blocks_ == 1) {
    find_written();
  }
  if (blocks_ == 0) {
    std::memset(all_.data(), kGarbage, all_.size());
  }
  for (const Bytes& piece : written_) {
    std::memset(piece.data(), kGarbage, piece.size());
  }
  ++blocks_;
}

void SharedMemory::find_written() {
  for (std::size_t begin = 0; begin < all_.size(); begin += kPieceBytes) {
    const Bytes piece = all_.subspan(begin, std::min(kPieceBytes, all_.size() - begin));
    if (!is_garbage(piece)) {
      written_.push_back(piece);
    }
  }
}

bool SharedMemory::kept_its_size() const {
  const auto whole = std::as_bytes(std::span(strata::ops::cuda::memory_of_block));
  return is_garbage(whole.subspan(asked_bytes_));
}

}  // namespace standin
