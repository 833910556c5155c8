#pragma once

#include <cstdint>
#include <vector>

#include "strata/grid/tree.hpp"

namespace strata::grid {

/// Which leaves of a sum tree each of several ranks computes, one in each round. The sums have the
/// same bits with every assignment (design law 1); it decides who computes what, and when.
class Assignment {
 public:
  /// Consecutive leaves to each rank. Pre: ranks divides the leaves.
  [[nodiscard]] static Assignment blocked(const SumTree& tree, std::int64_t ranks);
  /// Leaf i to rank i % ranks. Pre: ranks divides the leaves.
  [[nodiscard]] static Assignment interleaved(const SumTree& tree, std::int64_t ranks);
  /// Leaves and ranks of two axes, the inner one fastest: leaf (i, k) to the rank of i and that of
  /// k, in the round of i and that of k.
  [[nodiscard]] static Assignment product(const Assignment& outer, const Assignment& inner);

  [[nodiscard]] const SumTree& tree() const { return tree_; }
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }
  [[nodiscard]] std::int64_t rounds() const { return tree_.leaves() / ranks_; }
  /// Ascending in the rounds of a rank.
  [[nodiscard]] std::int64_t leaf(std::int64_t rank, std::int64_t round) const {
    return leaf_[static_cast<std::size_t>(rank * rounds() + round)];
  }
  /// The tree nodes that the leaves of these ranks complete, in order.
  [[nodiscard]] std::vector<Range> nodes_of(const Range& ranks) const;
  [[nodiscard]] std::vector<Range> nodes_of(std::int64_t rank) const {
    return nodes_of({rank, rank + 1});
  }

 private:
  Assignment(const SumTree& tree, std::int64_t ranks);

  SumTree tree_;
  std::int64_t ranks_;
  std::vector<std::int64_t> leaf_;  ///< of rank and round
};

}  // namespace strata::grid
