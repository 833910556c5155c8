#include "strata/grid/tree.hpp"

#include <algorithm>
#include <functional>

#include "strata/core/error.hpp"

namespace strata::grid {

SumTree::SumTree(std::int64_t leaves) : leaves_(leaves) {
  require(leaves >= 1, "a sum of {} lanes", leaves);
}

std::vector<Range> SumTree::nodes_within(const Range& range) const {
  require(range.begin >= 0 && range.begin < range.end && range.end <= leaves_,
          "lanes [{}, {}) of {}", range.begin, range.end, leaves_);
  std::vector<Range> nodes;
  collect({0, leaves_}, range, nodes);
  return nodes;
}

void SumTree::collect(const Range& node, const Range& range, std::vector<Range>& nodes) const {
  if (node.end <= range.begin || node.begin >= range.end) {
    return;
  }
  if (node.begin >= range.begin && node.end <= range.end) {
    nodes.push_back(node);
    return;
  }
  const std::int64_t middle = node.begin + node.count() / 2;
  collect({node.begin, middle}, range, nodes);
  collect({middle, node.end}, range, nodes);
}

std::vector<ReductionStep> reduction_steps(const SumTree& tree, std::span<const Range> nodes) {
  std::vector<ReductionStep> steps;
  std::size_t next = 0;  // the tree is walked from left to right, as the parts lie
  // The part that holds a node's sum once its subtree has been added up: that of its first leaf.
  const std::function<std::int64_t(const Range&)> add_up = [&](const Range& node) {
    if (next < nodes.size() && nodes[next] == node) {
      return static_cast<std::int64_t>(next++);
    }
    require(node.count() > 1, "leaf {} of the sum is not covered by any part", node.begin);
    const std::int64_t middle = node.begin + node.count() / 2;
    const std::int64_t left = add_up({node.begin, middle});
    const std::int64_t right = add_up({middle, node.end});
    steps.push_back({left, right});
    return left;
  };
  add_up({0, tree.leaves()});
  return steps;
}

RunningReduction running_reduction(const SumTree& tree, const Range& leaves) {
  RunningReduction fold;
  fold.nodes = tree.nodes_within(leaves);
  for (std::size_t n = 0; n < fold.nodes.size(); ++n) {
    // Leaves come in order, so the partial sums that wait form a stack: the left siblings on the
    // way up.
    const std::function<void(const Range&, std::int64_t)> visit = [&](const Range& node,
                                                                      std::int64_t slot) {
      fold.accumulators = std::max(fold.accumulators, slot + 1);
      if (node.count() == 1) {
        fold.accumulator.push_back(slot);
        fold.after.emplace_back();
        return;
      }
      const std::int64_t middle = node.begin + node.count() / 2;
      visit({node.begin, middle}, slot);
      visit({middle, node.end}, slot + 1);
      fold.after.back().push_back({slot, slot + 1});
    };
    visit(fold.nodes[n], static_cast<std::int64_t>(n));
  }
  return fold;
}

RunningReduction joint_reduction(const SumTree& tree, const Range& leaves) {
  RunningReduction fold;
  fold.nodes = tree.nodes_within(leaves);
  fold.accumulators = leaves.count();
  fold.after.resize(static_cast<std::size_t>(leaves.count()));
  // The first leaf of a node lies where its sum shall be; the other leaves lie behind all nodes.
  std::int64_t next = std::ssize(fold.nodes);
  for (std::size_t n = 0; n < fold.nodes.size(); ++n) {
    const std::function<std::int64_t(const Range&)> add_up = [&](const Range& node) {
      if (node.count() == 1) {
        const bool first = node.begin == fold.nodes[n].begin;
        fold.accumulator.push_back(first ? static_cast<std::int64_t>(n) : next++);
        return fold.accumulator.back();
      }
      const std::int64_t middle = node.begin + node.count() / 2;
      const std::int64_t left = add_up({node.begin, middle});
      const std::int64_t right = add_up({middle, node.end});
      fold.after.back().push_back({left, right});
      return left;
    };
    add_up(fold.nodes[n]);
  }
  return fold;
}

double sum_in_tree(const SumTree& tree, std::span<const double> leaves) {
  require(static_cast<std::int64_t>(leaves.size()) == tree.leaves(), "{} values for {} leaves",
          leaves.size(), tree.leaves());
  const std::function<double(const Range&)> add_up = [&](const Range& node) {
    if (node.count() == 1) {
      return leaves[static_cast<std::size_t>(node.begin)];
    }
    const std::int64_t middle = node.begin + node.count() / 2;
    return add_up({node.begin, middle}) + add_up({middle, node.end});
  };
  return add_up({0, tree.leaves()});
}

}  // namespace strata::grid
