#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/core/reduction_step.hpp"
#include "strata/grid/grid.hpp"

namespace strata::grid {

/// The one balanced binary tree in which the contributions of `leaves` lanes, shards or blocks are
/// added. Each node is a range of leaves; a node of n > 1 leaves has the children [begin, begin + n
/// / 2) and [begin + n / 2, end). The tree depends on the number of leaves alone, never on the grid
/// (design law 1).
class SumTree {
 public:
  explicit SumTree(std::int64_t leaves);

  [[nodiscard]] std::int64_t leaves() const { return leaves_; }

  /// The fewest nodes of the tree that together cover some leaves, in order. What a holder of these
  /// leaves can add up by itself is one partial sum a node. Pre: ascending; at least one.
  [[nodiscard]] std::vector<Range> nodes_of(std::span<const std::int64_t> leaves) const;
  /// The same of consecutive leaves.
  [[nodiscard]] std::vector<Range> nodes_within(const Range& range) const;

 private:
  std::int64_t leaves_;
};

/// The additions, in order, that bring partial sums of the given tree nodes together, each of
/// `sums` in its first part. Pre: `nodes` are disjoint nodes of the tree, in any order, and cover
/// the leaves of `sums`, which are nodes too.
[[nodiscard]] std::vector<ReductionStep> reduction_steps(std::span<const Range> nodes,
                                                         std::span<const Range> sums);
/// The same for the sum of one part a leaf, in part 0.
[[nodiscard]] std::vector<ReductionStep> reduction_steps(const SumTree& tree);

/// How a holder of the leaves of some nodes adds them as they come, in ascending order, with few
/// accumulators: the i-th is accumulated in accumulator[i]; after it, the additions after[i] are
/// done. The sum of node k is left in accumulator k.
struct RunningReduction {
  std::vector<std::int64_t> accumulator;
  std::vector<std::vector<ReductionStep>> after;
  std::int64_t accumulators = 0;
};

[[nodiscard]] RunningReduction running_reduction(std::span<const Range> nodes);

/// The same for leaves that come all at a time: each has an accumulator of its own, and all
/// additions are done after the last.
[[nodiscard]] RunningReduction joint_reduction(std::span<const Range> nodes);

/// The sum of one value a leaf, added in the tree's order.
[[nodiscard]] double sum_in_tree(const SumTree& tree, std::span<const double> leaves);

}  // namespace strata::grid
