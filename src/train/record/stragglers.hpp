#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/core/log.hpp"

namespace strata::train {

/// A rank that computes longer than its peers. Units: seconds of a step.
struct SlowRank {
  std::int64_t rank = 0;
  double seconds = 0.0;
  double peers_seconds = 0.0;

  [[nodiscard]] std::string text() const;
};

/// The mean compute times of all ranks over a window of steps.
struct RankTimes {
  double least = 0.0;
  double median = 0.0;
  double most = 0.0;
  std::int64_t slowest = 0;      ///< the rank of `most`
  std::vector<SlowRank> slow{};  ///< named now

  /// As in "compute 41 / 42 / 63 ms (rank 3)".
  [[nodiscard]] std::string text() const;
};

/// Collects every rank's compute time and names stragglers.
class Stragglers {
 public:
  explicit Stragglers(comm::Groups& groups) : groups_(groups) {}

  void add_step(double compute_seconds);
  /// Ends the window: names each rank once whose mean compute time was above 1.5 times the median
  /// of the replicas of its stage in two windows one after the other.
  /// Communication: an all-gather over the world. Pre: add_step() was called since the last window.
  [[nodiscard]] RankTimes end_window(Log& log);

 private:
  comm::Groups& groups_;
  double seconds_ = 0.0;
  std::int64_t steps_ = 0;
  /// Windows in a row in which each rank was slow; those that were named count on.
  std::vector<std::int64_t> slow_windows_;
};

/// The ranks that take more than 1.5 times the median of their group's times.
[[nodiscard]] std::vector<std::size_t> slow_among(const std::vector<double>& seconds);

}  // namespace strata::train
