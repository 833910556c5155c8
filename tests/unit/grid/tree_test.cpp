#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/grid/assignment.hpp"

namespace strata::grid::tree_test {
namespace {

/// The sum of the leaves [begin, end) as the design writes it: halves, the smaller one left.
std::string expression(std::int64_t begin, std::int64_t end) {
  if (end - begin == 1) {
    return std::to_string(begin);
  }
  const std::int64_t middle = begin + (end - begin) / 2;
  return "(" + expression(begin, middle) + "+" + expression(middle, end) + ")";
}

void add(std::vector<std::string>& parts, const ReductionStep& step) {
  std::string& into = parts.at(static_cast<std::size_t>(step.into));
  std::string& from = parts.at(static_cast<std::size_t>(step.from));
  ASSERT_FALSE(into.empty());
  ASSERT_FALSE(from.empty());
  into = "(" + into + "+" + from + ")";
  from.clear();
}

/// What a rank has in its accumulators after the last of its leaves.
std::vector<std::string> run(const RunningReduction& fold, const Assignment& assignment,
                             std::int64_t rank) {
  std::vector<std::string> accumulators(static_cast<std::size_t>(fold.accumulators));
  for (std::int64_t i = 0; i < assignment.rounds(); ++i) {
    std::string& slot =
        accumulators.at(static_cast<std::size_t>(fold.accumulator.at(static_cast<std::size_t>(i))));
    EXPECT_TRUE(slot.empty()) << "leaf " << i << " overwrites " << slot;
    slot = std::to_string(assignment.leaf(rank, i));
    for (const ReductionStep& step : fold.after.at(static_cast<std::size_t>(i))) {
      add(accumulators, step);
    }
  }
  return accumulators;
}

/// The sums that ranks make of their leaves, and of each other's.
template <typename FoldOf>
void expect_one_expression(const Assignment& assignment, const FoldOf& fold_of) {
  const std::int64_t lanes = assignment.tree().leaves();
  std::vector<Range> nodes;
  std::vector<std::string> parts;
  for (std::int64_t rank = 0; rank < assignment.ranks(); ++rank) {
    const std::vector<Range> own = assignment.nodes_of(rank);
    const std::vector<std::string> accumulators = run(fold_of(own), assignment, rank);
    for (std::size_t n = 0; n < accumulators.size(); ++n) {
      if (n < own.size()) {
        EXPECT_EQ(accumulators[n], expression(own[n].begin, own[n].end));
        parts.push_back(accumulators[n]);
      } else {
        EXPECT_EQ(accumulators[n], "");
      }
    }
    nodes.insert(nodes.end(), own.begin(), own.end());
  }
  const Range all{0, lanes};
  for (const ReductionStep& step : reduction_steps(nodes, std::span(&all, 1))) {
    add(parts, step);
  }
  EXPECT_EQ(parts.front(), expression(0, lanes))
      << lanes << " lanes on " << assignment.ranks() << " ranks";
}

/// For all numbers of lanes and ranks, and every kind of assignment.
template <typename FoldOf>
void expect_one_expression(const FoldOf& fold_of) {
  for (std::int64_t lanes = 1; lanes <= 24; ++lanes) {
    const SumTree tree(lanes);
    for (std::int64_t ranks = 1; ranks <= lanes; ++ranks) {
      if (lanes % ranks != 0) {
        continue;
      }
      expect_one_expression(Assignment::blocked(tree, ranks), fold_of);
      expect_one_expression(Assignment::interleaved(tree, ranks), fold_of);
      expect_one_expression(Assignment::product(Assignment::blocked(tree, ranks),
                                                Assignment::interleaved(SumTree(6), 3)),
                            fold_of);
      expect_one_expression(Assignment::product(Assignment::interleaved(SumTree(6), 2),
                                                Assignment::blocked(tree, ranks)),
                            fold_of);
    }
  }
}

TEST(Assignment, IsOneExpressionForEveryNumberOfRanks) {
  expect_one_expression([](std::span<const Range> nodes) { return running_reduction(nodes); });
}

TEST(Assignment, IsTheSameForConcurrentLeaves) {
  expect_one_expression([](std::span<const Range> nodes) { return joint_reduction(nodes); });
}

TEST(Assignment, DealsEachLeafOnce) {
  const auto leaves_of = [](const Assignment& assignment, std::int64_t rank) {
    std::vector<std::int64_t> leaves;
    for (std::int64_t round = 0; round < assignment.rounds(); ++round) {
      leaves.push_back(assignment.leaf(rank, round));
    }
    return leaves;
  };
  using Leaves = std::vector<std::int64_t>;
  const Assignment blocked = Assignment::blocked(SumTree(6), 3);
  EXPECT_EQ(leaves_of(blocked, 1), (Leaves{2, 3}));
  EXPECT_EQ(blocked.nodes_of({1, 3}), (std::vector<Range>{{2, 3}, {3, 6}}));
  EXPECT_EQ(leaves_of(Assignment::interleaved(SumTree(6), 3), 1), (Leaves{1, 4}));
  const Assignment both = Assignment::product(Assignment::interleaved(SumTree(4), 2), blocked);
  EXPECT_EQ(both.ranks(), 6);
  EXPECT_EQ(leaves_of(both, 4), (Leaves{1 * 6 + 2, 1 * 6 + 3, 3 * 6 + 2, 3 * 6 + 3}));
  EXPECT_THROW(static_cast<void>(Assignment::blocked(SumTree(6), 4)), std::logic_error);
}

TEST(SumTree, NodesWithinAnyRangeCoverItAndAreAsFewAsCanBe) {
  for (std::int64_t leaves = 1; leaves <= 24; ++leaves) {
    const SumTree tree(leaves);
    for (std::int64_t begin = 0; begin < leaves; ++begin) {
      for (std::int64_t end = begin + 1; end <= leaves; ++end) {
        const std::vector<Range> nodes = tree.nodes_within({begin, end});
        std::int64_t next = begin;
        for (const Range& node : nodes) {
          ASSERT_EQ(node.begin, next);
          ASSERT_EQ(tree.nodes_within(node).size(), 1U) << "no node of the tree";
          next = node.end;
        }
        ASSERT_EQ(next, end);
        for (std::size_t i = 1; i < nodes.size(); ++i) {
          ASSERT_GT(tree.nodes_within({nodes[i - 1].begin, nodes[i].end}).size(), 1U);
        }
      }
    }
  }
}

TEST(RunningReduction, NeedsAboutTheLogarithmOfTheLeaves) {
  const std::vector<std::int64_t> expected{1, 2, 3, 3, 4, 4, 4, 4, 5};
  for (std::int64_t leaves = 1; leaves <= 9; ++leaves) {
    EXPECT_EQ(running_reduction(SumTree(leaves).nodes_within({0, leaves})).accumulators,
              expected[static_cast<std::size_t>(leaves) - 1])
        << leaves;
  }
}

TEST(SumTree, ReducesAsManyLeavesAsASettingAllows) {
  constexpr std::int64_t kLeaves = 65536;
  const std::vector<ReductionStep> steps = reduction_steps(SumTree(kLeaves));
  ASSERT_EQ(steps.size(), kLeaves - 1U);
  EXPECT_EQ(steps.front(), (ReductionStep{0, 1}));
  EXPECT_EQ(steps.back(), (ReductionStep{0, kLeaves / 2}));
}

TEST(SumInTree, AddsAsTheTreeDoes) {
  // In f64 the order decides: 1 vanishes beside 1e16, and 1e16 - 1e16 must come first to save it.
  EXPECT_EQ(sum_in_tree(SumTree(4), std::vector{1e16, -1e16, 1.0, 1.0}), 2.0);
  EXPECT_EQ(sum_in_tree(SumTree(4), std::vector{1e16, 1.0, -1e16, 1.0}), 0.0);
  EXPECT_EQ(sum_in_tree(SumTree(3), std::vector{1e16, -1e16, 1.0}), 0.0);
  EXPECT_EQ(sum_in_tree(SumTree(3), std::vector{1.0, 1e16, -1e16}), 1.0);
  EXPECT_EQ(sum_in_tree(SumTree(1), std::vector{0.5}), 0.5);
  EXPECT_THROW(static_cast<void>(sum_in_tree(SumTree(3), std::vector{1.0})), std::logic_error);
}

TEST(SumTree, RefusesWhatIsNoSum) {
  EXPECT_THROW(SumTree(0), std::logic_error);
  const SumTree tree(4);
  EXPECT_THROW(static_cast<void>(tree.nodes_within({0, 5})), std::logic_error);
  EXPECT_THROW(static_cast<void>(tree.nodes_within({2, 2})), std::logic_error);
  const std::vector<Range> nodes{{0, 2}, {3, 4}};
  const Range all{0, 4};
  EXPECT_THROW(static_cast<void>(reduction_steps(nodes, std::span(&all, 1))), std::logic_error);
}

}  // namespace
}  // namespace strata::grid::tree_test
