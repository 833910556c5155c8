#pragma once

#include <functional>

#include "strata/device/device.hpp"
#include "strata/device/handle.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// Work of one stream of a GPU, recorded once and then given as a whole, which costs the host one
/// call (a CUDA graph).
class Graph {
 public:
  /// Captures the work that `work` enqueues on the stream, without executing it. `work` must not
  /// wait for the stream, allocate or free device memory, or copy from or to pageable host memory.
  /// The graph keeps the addresses and numbers of the capture. Pre: `stream` is a GPU's.
  /// Throws: Error(kPeer) where the capture fails; what `work` throws.
  Graph(Stream& stream, const std::function<void()>& work);

  /// Launches the graph on the stream that it was captured from. Throws: Error(kPeer).
  void launch(Stream& stream) const;

 private:
  Device device_;
  Handle handle_;
};

}  // namespace strata::device
