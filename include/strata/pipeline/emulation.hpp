#pragma once

#include <span>

#include "strata/comm/progress_engine.hpp"
#include "strata/core/clock.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline {

/// Takes a stage's place where run.device is emulated: its actions sleep for given times instead of
/// computing. As a GPU, whose host is at most two actions ahead, it begins an action at the end of
/// the one before, even where the host wakes late, unless the host waited for a message in between.
class EmulatedDevice {
 public:
  EmulatedDevice(const ChunkTimes& times, comm::ProgressEngine& engine)
      : times_(times), engine_(engine) {}

  /// A wait for a message that the next action needs ends now, after `seconds`.
  void end_wait(double seconds);

  /// Sleeps until the end of an action. Messages make progress meanwhile.
  void run(ActionKind kind);
  /// Also reports each layer to the sink, after an even share of the time.
  void backward_weight(const nn::Stage& stage, std::span<const nn::Microbatch> concurrent,
                       nn::GradientSink& sink);

 private:
  [[nodiscard]] double begin(double seconds) const;
  void sleep_until(double end);

  const ChunkTimes& times_;
  comm::ProgressEngine& engine_;
  /// When the last action ended, on the device.
  double free_ = now_seconds();
};

}  // namespace strata::pipeline
