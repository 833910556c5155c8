#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>

#include "strata/comm/progress_engine.hpp"
#include "strata/core/clock.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline::test {

/// Makes the actions of a stage take given times on top of what they compute: sleeps after each, as
/// the executor's observer. A device of its own would not wait for the host, so an action begins at
/// the end of the one before, or when its message came, even where the host wakes late.
class EmulatedDevice {
 public:
  /// `times`: of each chunk. `engine` outlives the object.
  EmulatedDevice(std::vector<ChunkTimes> times, nn::BackwardOrder order,
                 comm::ProgressEngine& engine)
      : times_(std::move(times)), order_(order), engine_(engine) {
    constexpr unsigned long kNanoseconds = 1000;  // by default, sleeps end 50 microseconds late
    ::prctl(PR_SET_TIMERSLACK, kNanoseconds, 0, 0, 0);
  }

  void after(const Action& action, double begin, double end) {
    constexpr double kWaitedSeconds = 2e-5;
    constexpr double kActionsAhead = 2.0;
    if (is_receive(action.kind)) {
      free_ = end - begin > kWaitedSeconds ? std::max(free_, end) : free_;
    } else if (action.kind == ActionKind::kReduce) {
      free_ = kIdle;
    } else if (!is_send(action.kind)) {
      const double seconds = seconds_of(action);
      free_ = free_ == kIdle ? begin : std::max(free_, begin - kActionsAhead * seconds);
      free_ += end - begin + seconds;
      sleep();
    }
  }

 private:
  static constexpr double kIdle = -1.0;

  [[nodiscard]] double seconds_of(const Action& action) const {
    const ChunkTimes& times = times_[static_cast<std::size_t>(action.chunk)];
    const bool fused = order_ == nn::BackwardOrder::kFused;
    switch (action.kind) {
      case ActionKind::kForward:
        return times.forward_seconds;
      case ActionKind::kBackwardInput:
        return times.backward_input_seconds + (fused ? times.backward_weight_seconds : 0.0);
      default:
        return fused ? 0.0 : times.backward_weight_seconds;
    }
  }

  /// Messages make progress meanwhile.
  void sleep() {
    constexpr double kInterval = 5e-4;
    for (double now = now_seconds(); now < free_; now = now_seconds()) {
      engine_.progress();
      std::this_thread::sleep_for(
          std::chrono::duration<double>(std::min(kInterval, free_ - now_seconds())));
    }
  }

  std::vector<ChunkTimes> times_;
  nn::BackwardOrder order_;
  comm::ProgressEngine& engine_;
  double free_ = kIdle;  ///< when the last action ends; between steps kIdle
};

}  // namespace strata::pipeline::test
