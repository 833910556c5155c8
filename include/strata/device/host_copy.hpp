#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// A host copy of a small result tensor. Several copies are enqueued after the work that writes the
/// tensors, and the host waits once for all. A tensor in host memory is read in place.
class HostCopy {
 public:
  /// Of nothing.
  HostCopy() = default;
  /// Of a tensor in the memory of `device`. Throws: Error(kPeer) where there is not enough memory.
  HostCopy(const ConstTensorView& tensor, const Device& device);

  /// Enqueues the copy after the work that is on `stream` now; does not wait.
  void update(Stream& stream);
  /// The copy, in host memory. Pre: `stream` has been waited for since the last update().
  [[nodiscard]] const ConstTensorView& view() const { return view_; }

 private:
  ConstTensorView tensor_;
  std::unique_ptr<PinnedBuffer> memory_;
  ConstTensorView view_;
};

/// A tensor's elements in host memory: in place where possible, else a copy of their own.
class HostView {
 public:
  /// Waits for the work on `stream`, which wrote the tensor, where a copy is made.
  HostView(const ConstTensorView& tensor, Stream& stream);

  [[nodiscard]] const ConstTensorView& view() const { return view_; }

 private:
  Buffer memory_;
  ConstTensorView view_;
};

/// Writes a tensor in any memory from the host: calls `write` for consecutive pieces, each with
/// host memory and the index of its first element. A tensor in host memory is one piece; otherwise
/// a piece has at most 16 MiB. Returns after all copies have arrived.
/// Pre: no work under way uses the tensor.
void write_from_host(const TensorView& tensor,
                     const std::function<void(std::int64_t first, const TensorView& piece)>& write);

}  // namespace strata::device
