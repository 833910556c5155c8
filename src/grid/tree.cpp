#include "strata/grid/tree.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "strata/core/error.hpp"

namespace strata::grid {
namespace {

/// The fewest nodes that cover the leaves of a holder, who has held(node) leaves of a node.
std::vector<Range> nodes_where(std::int64_t leaves,
                               const std::function<std::int64_t(const Range&)>& held) {
  std::vector<Range> nodes;
  const std::function<void(const Range&)> collect = [&](const Range& node) {
    const std::int64_t own = held(node);
    if (own == node.count()) {
      nodes.push_back(node);
    } else if (own > 0) {
      const std::int64_t middle = node.begin + node.count() / 2;
      collect({node.begin, middle});
      collect({middle, node.end});
    }
  };
  collect({0, leaves});
  return nodes;
}

}  // namespace

SumTree::SumTree(std::int64_t leaves) : leaves_(leaves) {
  require(leaves >= 1, "a sum of {} leaves", leaves);
}

std::vector<Range> SumTree::nodes_of(std::span<const std::int64_t> leaves) const {
  require(!leaves.empty() && leaves.front() >= 0 && leaves.back() < leaves_ &&
              std::ranges::adjacent_find(leaves, std::greater_equal{}) == leaves.end(),
          "{} leaves of {}", leaves.size(), leaves_);
  return nodes_where(leaves_, [&](const Range& node) {
    return std::ranges::lower_bound(leaves, node.end) -
           std::ranges::lower_bound(leaves, node.begin);
  });
}

std::vector<Range> SumTree::nodes_within(const Range& range) const {
  require(range.count() >= 1 && range.begin >= 0 && range.end <= leaves_, "leaves {} to {} of {}",
          range.begin, range.end, leaves_);
  return nodes_where(leaves_, [&](const Range& node) {
    return std::max<std::int64_t>(
        0, std::min(node.end, range.end) - std::max(node.begin, range.begin));
  });
}

std::vector<ReductionStep> reduction_steps(std::span<const Range> nodes,
                                           std::span<const Range> sums) {
  std::vector<ReductionStep> steps;
  // The traversal visits the parts from left to right.
  std::vector<std::int64_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto node_at = [&](std::int64_t part) { return nodes[static_cast<std::size_t>(part)]; };
  std::ranges::sort(order, {}, [&](std::int64_t part) { return node_at(part).begin; });
  auto next = order.begin();
  // Reduces a subtree; returns the part that then holds its sum, the part of its first leaf.
  const std::function<std::int64_t(const Range&)> reduce = [&](const Range& node) {
    if (next != order.end() && node_at(*next) == node) {
      return *next++;
    }
    require(node.count() > 1, "leaf {} of the sum is not covered by any part", node.begin);
    const std::int64_t middle = node.begin + node.count() / 2;
    const std::int64_t left = reduce({node.begin, middle});
    const std::int64_t right = reduce({middle, node.end});
    steps.push_back({left, right});
    return left;
  };
  for (const Range& sum : sums) {
    reduce(sum);
  }
  return steps;
}

std::vector<ReductionStep> reduction_steps(const SumTree& tree) {
  std::vector<Range> leaves;
  leaves.reserve(static_cast<std::size_t>(tree.leaves()));
  for (std::int64_t leaf = 0; leaf < tree.leaves(); ++leaf) {
    leaves.push_back({leaf, leaf + 1});
  }
  const Range all{0, tree.leaves()};
  return reduction_steps(leaves, std::span(&all, 1));
}

RunningReduction running_reduction(std::span<const Range> nodes) {
  RunningReduction reduction;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    // Leaves arrive in order, so the pending partial sums (left siblings) form a stack.
    const std::function<void(const Range&, std::int64_t)> visit = [&](const Range& node,
                                                                      std::int64_t slot) {
      reduction.accumulators = std::max(reduction.accumulators, slot + 1);
      if (node.count() == 1) {
        reduction.accumulator.push_back(slot);
        reduction.after.emplace_back();
        return;
      }
      const std::int64_t middle = node.begin + node.count() / 2;
      visit({node.begin, middle}, slot);
      visit({middle, node.end}, slot + 1);
      reduction.after.back().push_back({slot, slot + 1});
    };
    visit(nodes[n], static_cast<std::int64_t>(n));
  }
  return reduction;
}

RunningReduction joint_reduction(std::span<const Range> nodes) {
  RunningReduction reduction;
  for (const Range& node : nodes) {
    reduction.accumulators += node.count();
  }
  reduction.after.resize(static_cast<std::size_t>(reduction.accumulators));
  // The first leaf of a node uses the accumulator of the node's sum; the other leaves follow the
  // nodes.
  std::int64_t next = std::ssize(nodes);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const std::function<std::int64_t(const Range&)> reduce = [&](const Range& node) {
      if (node.count() == 1) {
        const bool first = node.begin == nodes[n].begin;
        reduction.accumulator.push_back(first ? static_cast<std::int64_t>(n) : next++);
        return reduction.accumulator.back();
      }
      const std::int64_t middle = node.begin + node.count() / 2;
      const std::int64_t left = reduce({node.begin, middle});
      const std::int64_t right = reduce({middle, node.end});
      reduction.after.back().push_back({left, right});
      return left;
    };
    reduce(nodes[n]);
  }
  return reduction;
}

namespace {

double sum_of(const double* leaves, std::int64_t count) {
  if (count == 1) {
    return leaves[0];
  }
  if (count == 2) {
    return leaves[0] + leaves[1];
  }
  // A child is the tree of its own leaves.
  const std::int64_t left = count / 2;
  return sum_of(leaves, left) + sum_of(leaves + left, count - left);
}

}  // namespace

double sum_in_tree(const SumTree& tree, std::span<const double> leaves) {
  require(static_cast<std::int64_t>(leaves.size()) == tree.leaves(), "{} values for {} leaves",
          leaves.size(), tree.leaves());
  return sum_of(leaves.data(), tree.leaves());
}

}  // namespace strata::grid
