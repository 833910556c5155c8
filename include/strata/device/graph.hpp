#pragma once

#include <functional>

#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// Work of one stream of a GPU, recorded once and then given as a whole, which costs the host one
/// call (a CUDA graph).
class Graph {
 public:
  /// Records what `work` puts on the stream in place of doing it. In it nobody may wait for the
  /// stream, take or give back device memory, or copy from or to host memory that is not pinned;
  /// what it puts there must stay right as long as the graph is launched: addresses and numbers are
  /// recorded as they are now. Pre: `stream` is a GPU's.
  /// Throws: Error(kPeer) where something of it cannot be recorded; what `work` throws.
  Graph(Stream& stream, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  /// Puts the recorded work on the stream that it was recorded from. Throws: Error(kPeer).
  void launch(Stream& stream) const;

 private:
  Device device_;
  void* raw_ = nullptr;
};

}  // namespace strata::device
