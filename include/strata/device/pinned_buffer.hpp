#pragma once

#include <cstddef>
#include <cstdint>

#include "strata/device/device.hpp"

namespace strata::device {

/// An owner of pinned host memory, which a GPU copies to and from asynchronously. For small buffers
/// only: it cannot be swapped out.
class PinnedBuffer {
 public:
  /// For copies of `device`, a GPU. Throws: Error(kPeer) where there is no GPU or not enough
  /// memory.
  PinnedBuffer(const Device& device, std::int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::byte* raw() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace strata::device
