#pragma once

#include <cstdint>
#include <set>

#include "strata/core/clock.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"

namespace strata::train {

/// The sniff tests of a training run (run.sniff). Communication: collective over the world.
class SniffTests {
 public:
  SniffTests(const TrainerSetup& setup, RankState& state) : setup_(setup), state_(state) {}

  /// The test before the first step that is trained, the one after `step`.
  /// Throws: AgreedError(kPeer) that names the ranks with other bits.
  void start(std::int64_t step);
  /// The test after `step`, where it is due. Throws: as start().
  void after(std::int64_t step);
  /// Logs the cost of several tests.
  void log_cost() const;

 private:
  void test(std::int64_t step);

  const TrainerSetup& setup_;
  RankState& state_;
  std::set<std::int64_t> slow_ranks_;  ///< that a test has named
  std::int64_t tested_step_ = 0;
  std::int64_t tests_ = 0;
  double began_ = now_seconds();
  double seconds_ = 0.0;
};

}  // namespace strata::train
