#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/progress_engine.hpp"
#include "strata/core/clock.hpp"
#include "strata/grid/tree.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::comm {

/// Parts (virtual shards or lanes) distributed over the ranks of a group: each rank owns the
/// consecutive parts own(). With one rank there are no messages.
class PartitionedGroup {
 public:
  /// `engine`: of the group's transport. Pre: group.size() divides parts; both outlive the object.
  PartitionedGroup(Communicator& group, const ProgressEngine& engine, std::int64_t parts);
  /// All parts on one rank.
  explicit PartitionedGroup(std::int64_t parts);

  /// Switches to another group; this rank's index in it selects its parts. The old group may be
  /// destroyed. Pre: as many ranks as before.
  void set_group(Communicator& group);

  [[nodiscard]] std::int64_t parts() const { return tree_.leaves(); }
  [[nodiscard]] const grid::Range& own() const { return own_; }
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }
  /// The additions that reduce one tensor per part into the first.
  [[nodiscard]] std::span<const ReductionStep> steps() const { return steps_; }

  /// Gathers tensors of equal size, one per part, in order of parts.
  /// Shapes: mine own x anything, all parts x the same. With one rank both are the same tensor.
  void all_gather_parts(const ConstTensorView& mine, const TensorView& all);

  /// Seconds spent in messages since the last reset.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }
  void reset_clock() { exposed_seconds_ = 0.0; }

 protected:
  [[nodiscard]] Communicator* group() const { return group_; }
  [[nodiscard]] const grid::SumTree& tree() const { return tree_; }
  /// Counts the time that `exchange` takes, less its waits for the device's computation.
  /// Pre: ranks() > 1.
  template <typename Exchange>
  void timed(const Exchange& exchange) {
    const double begin = now_seconds() - engine_->computing_seconds();
    exchange();
    exposed_seconds_ += now_seconds() - engine_->computing_seconds() - begin;
  }

 private:
  Communicator* group_;
  std::int64_t ranks_;
  const ProgressEngine* engine_;
  grid::SumTree tree_;
  grid::Range own_;
  std::vector<ReductionStep> steps_;
  double exposed_seconds_ = 0.0;
};

}  // namespace strata::comm
