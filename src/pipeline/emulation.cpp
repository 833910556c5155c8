#include "strata/pipeline/emulation.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <sys/prctl.h>

namespace strata::pipeline {

EmulatedDevice::EmulatedDevice(comm::ProgressEngine& engine, Arrived arrived)
    : engine_(engine), arrived_(std::move(arrived)) {
  constexpr unsigned long kNanoseconds = 1000;  // by default, sleeps end 50 microseconds late
  ::prctl(PR_SET_TIMERSLACK, kNanoseconds, 0, 0, 0);
}

void EmulatedDevice::received() {
  free_ = std::max(free_, arrival_ < 0.0 ? now_seconds() : arrival_);
}

void EmulatedDevice::begin(double seconds) {
  constexpr double kActionsAhead = 2.0;
  free_ = std::max(free_, now_seconds() - kActionsAhead * seconds);
  arrival_ = -1.0;
}

void EmulatedDevice::sleep_until(double end) {
  constexpr double kInterval = 5e-4;
  for (double now = now_seconds(); now < end; now = now_seconds()) {
    engine_.progress();
    if (arrival_ < 0.0 && arrived_()) {
      arrival_ = now_seconds();
    }
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(kInterval, end - now_seconds())));
  }
}

void EmulatedDevice::run(double seconds) {
  begin(seconds);
  free_ += seconds;
  sleep_until(free_);
}

void EmulatedDevice::backward_weight(const nn::Stage& stage,
                                     std::span<const nn::Microbatch> concurrent,
                                     nn::GradientSink& sink, double seconds) {
  begin(seconds);
  for (const nn::Microbatch& microbatch : concurrent) {
    static_cast<void>(sink.begin_microbatch(microbatch.number, stage.layers()));
  }
  const grid::Range& layers = stage.layers();
  for (std::int64_t i = layers.end; i-- > layers.begin;) {
    sleep_until(free_ + seconds * static_cast<double>(layers.end - i) /
                            static_cast<double>(layers.count()));
    const double reported = now_seconds();
    for (const nn::Microbatch& microbatch : concurrent) {
      sink.layer_done(microbatch.number, i);
    }
    free_ += now_seconds() - reported;  // the reduction is real
  }
  free_ += seconds;
}

}  // namespace strata::pipeline
