#include "loop/run_clock.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::train {

double assumed_save_seconds(std::int64_t bytes) {
  constexpr double kLatencySeconds = 3.0;
  constexpr double kBytesPerSecond = 200e6;
  return kLatencySeconds + static_cast<double>(bytes) / kBytesPerSecond;
}

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

void RunClock::save_failed(double now) {
  constexpr double kRetrySeconds = 60.0;
  if (save_began_) {
    last_save_ = now - std::max(0.0, options_.save_interval_seconds - kRetrySeconds);
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

bool RunClock::stop_due(double now) {
  const double saves = save_began_ ? 2.0 : 1.0;
  time_is_over_ =
      time_is_over_ || now + 2.0 * step_seconds_ + saves * save_seconds() >= options_.ends;
  return time_is_over_;
}

std::string RunClock::time_limit_warning() const {
  if (!time_is_over_ || steps_ > 1) {
    return "";
  }
  return fmt::format(
      "the time limit leaves room for {} step{} only: a step takes {}, and a checkpoint {}. Give "
      "the job "
      "more time (sbatch --time, run.time_limit), or more ranks",
      steps_, steps_ == 1 ? "" : "s", duration_text(step_seconds_), duration_text(save_seconds()));
}

double RunClock::save_seconds() const {
  return longest_save_.value_or(options_.assumed_save_seconds);
}

}  // namespace strata::train
