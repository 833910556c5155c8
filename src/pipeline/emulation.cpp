#include "strata/pipeline/emulation.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace strata::pipeline {

void EmulatedDevice::end_wait(double seconds) {
  constexpr double kArrivedBefore = 5e-5;
  if (seconds > kArrivedBefore) {
    free_ = now_seconds();
  }
}

double EmulatedDevice::begin(double seconds) const {
  constexpr double kActionsAhead = 2.0;
  return std::max(free_, now_seconds() - kActionsAhead * seconds);
}

void EmulatedDevice::sleep_until(double end) {
  constexpr double kInterval = 2e-4;
  for (double now = now_seconds(); now < end; now = now_seconds()) {
    engine_.progress();
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(kInterval, end - now_seconds())));
  }
}

void EmulatedDevice::run(ActionKind kind) {
  const double seconds = times_.of(kind);
  free_ = begin(seconds) + seconds;
  sleep_until(free_);
}

void EmulatedDevice::backward_weight(const nn::Stage& stage,
                                     std::span<const nn::Microbatch> concurrent,
                                     nn::GradientSink& sink) {
  const double seconds = times_.backward_weight_seconds;
  const double from = begin(seconds);
  for (const nn::Microbatch& microbatch : concurrent) {
    static_cast<void>(sink.begin_microbatch(microbatch.number));
  }
  const grid::Range& layers = stage.layers();
  for (std::int64_t i = layers.end; i-- > layers.begin;) {
    sleep_until(from + seconds * static_cast<double>(layers.end - i) /
                           static_cast<double>(layers.count()));
    for (const nn::Microbatch& microbatch : concurrent) {
      sink.layer_done(microbatch.number, i);
    }
  }
  free_ = from + seconds;
}

}  // namespace strata::pipeline
