#include "run_clock.hpp"

#include <algorithm>

namespace strata::train {

void RunClock::step_done(double seconds) {
  // The first step is the slowest; it is forgotten after some tens of steps.
  constexpr double kForget = 0.95;
  step_seconds_ = std::max(seconds, kForget * step_seconds_);
  ++steps_;
}

void RunClock::save_began(double now) {
  save_began_ = now;
  last_save_ = now;
}

void RunClock::save_ended(double now) {
  if (save_began_) {
    longest_save_ = std::max(longest_save_.value_or(0.0), now - *save_began_);
    save_began_.reset();
  }
}

bool RunClock::save_due(double now) const {
  if (options_.save_interval_seconds <= 0.0) {
    return false;
  }
  constexpr std::int64_t kEarlySteps = 3;
  constexpr double kEarlySeconds = 20.0;
  const bool early = last_save_ == options_.began && steps_ >= kEarlySteps &&
                     now - options_.began >= kEarlySeconds;
  return early || now - last_save_ >= options_.save_interval_seconds;
}

bool RunClock::stop_due(double now) const {
  const double saves = save_began_ ? 2.0 : 1.0;
  return now + 2.0 * step_seconds_ + saves * save_seconds() >= options_.ends;
}

double RunClock::save_seconds() const {
  return longest_save_.value_or(options_.assumed_save_seconds);
}

}  // namespace strata::train
