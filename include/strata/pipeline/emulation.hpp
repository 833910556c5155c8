#pragma once

#include <functional>
#include <span>

#include "strata/comm/progress_engine.hpp"
#include "strata/core/clock.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/stage.hpp"

namespace strata::pipeline {

/// Takes a stage's place where run.device is emulated: its actions sleep for given times instead of
/// computing. As on a GPU, whose host is at most two actions ahead, an action begins at the end of
/// the one before, or when its message was seen to arrive, even where the host wakes late.
class EmulatedDevice {
 public:
  /// Whether the messages are here that the next action needs.
  using Arrived = std::function<bool()>;

  /// Pre: `engine` outlives the object.
  EmulatedDevice(comm::ProgressEngine& engine, Arrived arrived);

  /// The host has received what the next action needs.
  void received();
  /// The host was blocked by something else than the device.
  void blocked() { free_ = now_seconds(); }

  /// Sleeps until the end of an action that takes `seconds`. Messages make progress meanwhile.
  void run(double seconds);
  /// Also reports each layer to the sink, after an even share of the time; the time that the sink
  /// takes delays the device.
  void backward_weight(const nn::Stage& stage, std::span<const nn::Microbatch> concurrent,
                       nn::GradientSink& sink, double seconds);

 private:
  void begin(double seconds);
  void sleep_until(double end);

  comm::ProgressEngine& engine_;
  Arrived arrived_;
  double free_ = now_seconds();  ///< when the device's last action ends, or began
  /// When the next action's messages were seen; negative: not yet.
  double arrival_ = -1.0;
};

}  // namespace strata::pipeline
