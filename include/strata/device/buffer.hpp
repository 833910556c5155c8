#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// The owner of a contiguous run of zero-initialised memory on one device.
class Buffer {
 public:
  /// Alignment of every buffer in bytes.
  static constexpr std::int64_t kAlignmentBytes = 64;

  /// Owns nothing.
  Buffer() = default;
  /// Throws: Error(kPeer) where the device has not that much memory left.
  Buffer(const Device& device, std::int64_t bytes);

  [[nodiscard]] const Device& device() const { return memory_.get_deleter().device; }
  [[nodiscard]] std::int64_t bytes() const {
    return memory_ == nullptr ? 0 : memory_.get_deleter().bytes;
  }
  [[nodiscard]] bool empty() const { return memory_ == nullptr; }
  /// The address, for libraries and launches only.
  [[nodiscard]] std::byte* raw() const { return memory_.get(); }

  /// A tensor of this memory that begins `offset_bytes` into it.
  /// Pre: the tensor lies within the buffer and its beginning is aligned for its dtype.
  [[nodiscard]] TensorView view(std::int64_t offset_bytes, const Shape& shape, DType dtype) const;

 private:
  struct Release {
    Device device;
    std::int64_t bytes;

    void operator()(std::byte* memory) const noexcept;
  };

  std::unique_ptr<std::byte, Release> memory_{nullptr, {Device::cpu(), 0}};
};

/// Limits the time that the release of GPU and pinned memory waits for the work that may use it. A
/// message of a lost peer never ends; the memory is then left to the end of the process, as is all
/// that is released later while the message is under way. Whoever waits for the message reports it.
/// Without a limit, which is the default, the wait ends with the work.
void limit_release_waits(double seconds);

/// Copies the elements of one tensor to another, on any devices, and waits for the copy.
/// Pre: equal dtype and count. Throws: Error(kPeer) where a device fails.
void copy_tensor(const ConstTensorView& from, const TensorView& to);

/// As copy_tensor(), ordered after the work on `stream`; the host does not wait where a GPU takes
/// part.
void copy_tensor(const ConstTensorView& from, const TensorView& to, Stream& stream);

}  // namespace strata::device
