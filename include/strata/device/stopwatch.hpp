#pragma once

#include "strata/device/device.hpp"
#include "strata/device/stream.hpp"

namespace strata::device {

/// The time between two points of a GPU's stream. The host waits for neither.
class Stopwatch {
 public:
  /// Pre: `device` is a GPU.
  explicit Stopwatch(const Device& device);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  Stopwatch(Stopwatch&& other) noexcept;
  Stopwatch& operator=(Stopwatch&& other) noexcept;

  /// Marks the end of the work that `stream` holds now as the beginning.
  void start(Stream& stream);
  /// The same as the end.
  void stop(Stream& stream);
  /// Pre: the stream has come to the end. Throws: Error(kPeer) where it has not, or the GPU fails.
  [[nodiscard]] double seconds() const;

 private:
  Device device_;
  void* start_ = nullptr;
  void* stop_ = nullptr;
};

}  // namespace strata::device
