#include "strata/grid/assignment.hpp"

#include <algorithm>

#include "strata/core/error.hpp"

namespace strata::grid {

Assignment::Assignment(const SumTree& tree, std::int64_t ranks) : tree_(tree), ranks_(ranks) {
  require(ranks > 0 && tree.leaves() % ranks == 0, "{} lanes for {} ranks", tree.leaves(), ranks);
  leaf_.reserve(static_cast<std::size_t>(tree.leaves()));
}

Assignment Assignment::blocked(const SumTree& tree, std::int64_t ranks) {
  Assignment blocked(tree, ranks);
  for (std::int64_t leaf = 0; leaf < tree.leaves(); ++leaf) {
    blocked.leaf_.push_back(leaf);
  }
  return blocked;
}

Assignment Assignment::interleaved(const SumTree& tree, std::int64_t ranks) {
  Assignment interleaved(tree, ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t leaf = rank; leaf < tree.leaves(); leaf += ranks) {
      interleaved.leaf_.push_back(leaf);
    }
  }
  return interleaved;
}

Assignment Assignment::product(const Assignment& outer, const Assignment& inner) {
  const std::int64_t inner_leaves = inner.tree().leaves();
  Assignment product(SumTree(outer.tree().leaves() * inner_leaves), outer.ranks() * inner.ranks());
  for (std::int64_t rank = 0; rank < product.ranks(); ++rank) {
    for (std::int64_t i = 0; i < outer.rounds(); ++i) {
      for (std::int64_t k = 0; k < inner.rounds(); ++k) {
        product.leaf_.push_back(outer.leaf(rank / inner.ranks(), i) * inner_leaves +
                                inner.leaf(rank % inner.ranks(), k));
      }
    }
  }
  return product;
}

std::vector<Range> Assignment::nodes_of(const Range& ranks) const {
  std::vector<std::int64_t> leaves(leaf_.begin() + ranks.begin * rounds(),
                                   leaf_.begin() + ranks.end * rounds());
  std::ranges::sort(leaves);
  return tree_.nodes_of(leaves);
}

}  // namespace strata::grid
