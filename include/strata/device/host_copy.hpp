#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
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

/// A tensor's elements where the host can read them: themselves where they lie in host memory, else
/// a copy of their own.
class HostView {
 public:
  /// Waits for the work on `stream`, which wrote the tensor, where a copy is made.
  HostView(const ConstTensorView& tensor, Stream& stream);

  [[nodiscard]] const ConstTensorView& view() const { return view_; }

 private:
  Buffer memory_;
  ConstTensorView view_;
};

/// Writes a tensor in any memory from the host: `write` is given its elements piece by piece, in
/// order, each piece as host memory with the index of its first element. A tensor in host memory is
/// one piece; else a piece takes at most 16 MiB. Returns when all is there.
/// Pre: no work under way uses the tensor.
void write_from_host(const TensorView& tensor,
                     const std::function<void(std::int64_t first, const TensorView& piece)>& write);

}  // namespace strata::device
