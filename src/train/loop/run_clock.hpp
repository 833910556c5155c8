#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace strata::train {

/// The assumed time of a save until one is measured: on a slow shared file system.
[[nodiscard]] double assumed_save_seconds(std::int64_t bytes);

/// When a run saves and when it stops by the clock. Rank 0 has one; its decisions travel to the
/// other ranks with the results of a step. Times are of now_seconds().
class RunClock {
 public:
  struct Options {
    double began = 0.0;  ///< when training began
    /// Between two saves; 0: none by the clock.
    double save_interval_seconds = 0.0;
    /// When the run must have ended.
    double ends = std::numeric_limits<double>::infinity();
    /// What a save takes, until one is measured.
    double assumed_save_seconds = 0.0;
  };

  explicit RunClock(const Options& options) : options_(options), last_save_(options.began) {}

  void step_done(double seconds);
  void save_began(double now);
  /// These do nothing where no save is under way. A save that failed is not measured, and the next
  /// is due after a minute or the interval, whichever is shorter.
  void save_ended(double now);
  void save_failed(double now);

  /// Whether the interval is over, or the early save is due: after three steps and 20 seconds. The
  /// first three steps allocate memory and record CUDA graphs. A run of 20 seconds hardly notices
  /// one save more, and a file system that refuses checkpoints is found within the first minute.
  [[nodiscard]] bool save_due(double now) const;
  /// Whether two more steps, a save and the save under way might not end in time.
  /// Stays so once it is.
  [[nodiscard]] bool stop_due(double now);
  [[nodiscard]] bool time_is_over() const { return time_is_over_; }
  /// What to say where the time is over after one step at most; else empty.
  [[nodiscard]] std::string time_limit_warning() const;

  /// The longest recent step, and the longest save or else the assumed one.
  [[nodiscard]] double step_seconds() const { return step_seconds_; }
  [[nodiscard]] double save_seconds() const;

 private:
  Options options_;
  double last_save_;
  std::optional<double> save_began_;    ///< of the save under way
  std::optional<double> longest_save_;  ///< in seconds, to the commit
  double step_seconds_ = 0.0;
  std::int64_t steps_ = 0;
  bool time_is_over_ = false;
};

}  // namespace strata::train
