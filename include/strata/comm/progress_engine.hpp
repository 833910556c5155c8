#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <numeric>

#include "strata/comm/communicator.hpp"
#include "strata/grid/grid.hpp"

namespace strata::comm {

/// Seconds that a rank waited for messages, by the axis of their group.
class ExposedSeconds {
 public:
  [[nodiscard]] double& of(grid::Axis axis) { return seconds_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] double of(grid::Axis axis) const {
    return seconds_[static_cast<std::size_t>(axis)];
  }
  [[nodiscard]] double total() const {
    return std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  }
  ExposedSeconds& operator+=(const ExposedSeconds& other) {
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      seconds_[i] += other.seconds_[i];
    }
    return *this;
  }
  ExposedSeconds& operator*=(double factor) {
    for (double& seconds : seconds_) {
      seconds *= factor;
    }
    return *this;
  }

 private:
  std::array<double, enum_names(grid::Axis()).size()> seconds_{};
};

/// How long the compute stream stalled on messages in device memory. The host does not wait for
/// these messages.
struct DeviceWaits {
  double stage_seconds = 0.0;  ///< on activations and their gradients
  ExposedSeconds groups;       ///< on all other messages
};

/// Advances the messages of all groups of this process and keeps the host close to its GPU. Each
/// transport has its own engine; this base class does nothing, which is enough for ranks that are
/// threads of one process.
class ProgressEngine {
 public:
  ProgressEngine() = default;
  virtual ~ProgressEngine() = default;
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  /// Advances the pending messages of every group, including those that are complete here but not
  /// at the peer. MPI advances messages only inside its own calls: a rank that computes for long
  /// calls this between operations, or its peers stall.
  /// Throws: Error(kPeer) where the transport has failed.
  virtual void progress() {}

  /// Blocks the host until all messages in device memory and all work on the compute stream are
  /// complete. Unlike synchronizing the stream, it returns when a peer is lost.
  /// Throws: Error(kPeer) where the timeout expires or the transport fails.
  virtual void drain() {}

  /// Blocks the host until the work on the compute stream is complete, and with it the messages
  /// that this work waits for, but no others. Throws: as drain().
  virtual void wait_for_compute() {}

  /// Throttles the host: at most two compute actions are enqueued ahead of the GPU. Called after
  /// each. A host further ahead would block in a launch, because the GPU's queue is full, and
  /// would not notice a lost peer. Throws: as drain().
  virtual void throttle() {}

  /// Returns and resets the stalls that earlier drain() calls have measured.
  [[nodiscard]] virtual DeviceWaits take_device_waits() { return {}; }

  /// Total seconds that the host has waited, inside calls of any group, for the GPU's computation
  /// and not for messages.
  [[nodiscard]] virtual double computing_seconds() const { return 0.0; }
};

/// The world over a transport that also takes device memory. Groups that are split from it are
/// destroyed before it.
struct DeviceWorld {
  std::unique_ptr<ProgressEngine> engine;
  std::unique_ptr<Communicator> ranks;
};

}  // namespace strata::comm
