#pragma once

#include <cstdint>
#include <functional>

#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// A tensor's elements where the host can read them: themselves where they lie in host memory, else
/// a copy.
class HostCopy {
 public:
  /// Waits for the work on `stream`, which wrote the tensor, where a copy is made.
  HostCopy(const ConstTensorView& tensor, Stream& stream);

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
