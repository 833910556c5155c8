#pragma once

#include <cstddef>
#include <cstdint>

namespace strata::device {

/// The owner of host memory that a GPU reads and writes by itself, so that a copy need not wait for
/// the host. For small things only: it cannot be moved out to disk.
class PinnedBuffer {
 public:
  /// Throws: Error(kPeer) where there is no GPU or not enough memory.
  explicit PinnedBuffer(std::int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::byte* raw() const { return data_; }

 private:
  std::byte* data_;
  std::int64_t bytes_;
};

}  // namespace strata::device
