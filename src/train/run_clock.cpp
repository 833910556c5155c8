#include "run_clock.hpp"

#include <algorithm>

namespace strata::train {

void RunClock::step_done(double seconds) {
  // The first step is the slowest; it is forgotten after some tens of steps.
  constexpr double kForget = 0.95;
  step_seconds_ = std::max(seconds, kForget * step_seconds_);
  ++steps_;
}

void RunClock::saved(double ended) {
  last_save_ = ended;
  ++saves_;
}

bool RunClock::save_due(double now) const {
  if (options_.save_interval_seconds <= 0.0) {
    return false;
  }
  constexpr std::int64_t kEarlySteps = 3;
  constexpr double kEarlySeconds = 20.0;
  const bool early = saves_ == 0 && steps_ >= kEarlySteps && now - options_.began >= kEarlySeconds;
  return early || now - last_save_ >= options_.save_interval_seconds;
}

bool RunClock::stop_due(double now) const {
  return now + 2.0 * step_seconds_ + save_seconds() >= options_.ends;
}

double RunClock::save_seconds() const {
  return longest_save_ > 0.0 ? longest_save_ : options_.assumed_save_seconds;
}

}  // namespace strata::train
