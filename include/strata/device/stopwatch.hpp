#pragma once

#include "strata/device/device.hpp"
#include "strata/device/handle.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// Measures the time between two points of a GPU's stream without host waits.
class Stopwatch {
 public:
  /// Pre: `device` is a GPU.
  explicit Stopwatch(const Device& device);

  /// Starts after the work that is on `stream` now.
  void start(Stream& stream);
  /// The same as the end.
  void stop(Stream& stream);
  /// Pre: the stream has reached the end. Throws: Error(kPeer) where it has not, or the GPU fails.
  [[nodiscard]] double seconds() const;

 private:
  Device device_;
  Handle start_;
  Handle stop_;
};

}  // namespace strata::device
