#pragma once

#include <memory>

#include "strata/core/tensor.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// The host's copy of a small tensor of results. Several are copied behind the work that writes
/// them, and the host then waits once for all. Host memory is not copied but read where it is.
class HostCopy {
 public:
  /// Of nothing.
  HostCopy() = default;
  /// Throws: Error(kPeer) where there is not enough memory.
  explicit HostCopy(const ConstTensorView& tensor);

  /// Copies the tensor as it is after the work that `stream` holds now, without waiting.
  void update(Stream& stream);
  /// The copy, in host memory. Pre: `stream` has been waited for since the last update().
  [[nodiscard]] const ConstTensorView& view() const { return view_; }

 private:
  ConstTensorView tensor_;
  std::unique_ptr<PinnedBuffer> memory_;
  ConstTensorView view_;
};

}  // namespace strata::device
