#pragma once

#include <cstdint>

#include "strata/device/device.hpp"
#include "strata/device/handle.hpp"

namespace strata::device {

/// Which of two streams' waiting blocks of threads a GPU starts first: those of the higher
/// priority.
enum class StreamPriority { kNormal, kHigh };

/// An in-order queue of work on one device. On the CPU work runs synchronously.
class Stream {
 public:
  explicit Stream(const Device& device, StreamPriority priority = StreamPriority::kNormal);

  [[nodiscard]] const Device& device() const { return device_; }
  /// Waits for all enqueued work. Throws: Error(kPeer) where any of it failed.
  void synchronize();
  /// Whether all enqueued work has completed. Throws as synchronize().
  [[nodiscard]] bool idle() const;
  /// The cudaStream_t, for libraries and launches only; null on the CPU.
  [[nodiscard]] void* raw() const { return handle_.get(); }

 private:
  Device device_;
  Handle handle_;
};

/// A point in a stream that other streams or the host wait for. It counts the expected waits of
/// each recording, so that a missed or doubled wait is an error and not a race.
class Event {
 public:
  /// Pre: consumers >= 1.
  Event(const Device& device, std::int64_t consumers);

  /// Records the point after the work that is on `stream` now.
  /// Throws: std::logic_error where a consumer of the last recording has not waited.
  void record(Stream& stream);
  /// Makes later work on `stream` wait for the recorded point; counts as one consumer.
  /// Throws: std::logic_error where nothing is recorded or every consumer has waited already.
  void wait(Stream& stream);
  /// As wait(), for the host.
  void wait_on_host();

  /// Whether the recorded point is reached; does not wait. Throws: Error(kPeer) where the work
  /// before it failed.
  [[nodiscard]] bool reached() const;

  /// Waits still due for the last recording.
  [[nodiscard]] std::int64_t waits_due() const { return waits_due_; }

 private:
  void consume();

  Device device_;
  std::int64_t consumers_;
  std::int64_t waits_due_ = 0;
  Handle handle_;
};

}  // namespace strata::device
