#include "strata/optim/parameter_groups.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/optim/optimizer.hpp"

#include "layouts.hpp"

namespace strata::optim::test::parameter_groups_test {
namespace {

TEST(ParameterGroups, AreReadAndWritten) {
  for (const auto& [text, written] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"*: learning_rate=0.1", "*: learning_rate=0.1"},
           {" a.* ,b:weight_decay=0  learning_rate=2 ; c: weight_decay=0.5;",
            "a.*,b: learning_rate=2 weight_decay=0; c: weight_decay=0.5"}}) {
    const auto groups = parse_groups(text);
    ASSERT_TRUE(groups) << text;
    EXPECT_EQ(text_of(*groups), written);
    EXPECT_EQ(text_of(*parse_groups(written)), written);
  }
  for (const std::string text :
       {"a", "a:", ": weight_decay=0", "a: weight_decay", "a: weight_decay=", "a: rate=1",
        "a: weight_decay=-1", "a: weight_decay=nan", "a: weight_decay=inf", "a: weight_decay=1x"}) {
    EXPECT_FALSE(parse_groups(text)) << text;
  }
}

TEST(ParameterGroups, LaterOnesReplaceFactorsOfEarlierOnesAndOfTheScope) {
  const auto groups =
      *parse_groups("*.bias: weight_decay=1; head.*: learning_rate=0.5; *.bias: learning_rate=3");
  const auto scales = [&](const std::string& name, const Shape& shape) {
    return scales_of({.name = name, .shape = shape}, DecayScope::kMatrices, groups);
  };
  struct Case {
    std::string name;
    Shape shape;
    double learning_rate;
    double weight_decay;
  };
  for (const Case& c : std::vector<Case>{{"head.weight", {2, 3}, 0.5, 1.0},
                                         {"head.bias", {2}, 3.0, 1.0},
                                         {"norm.weight", {2}, 1.0, 0.0},
                                         {"dense.bias", {2}, 3.0, 1.0},
                                         {"dense.weight", {2, 3}, 1.0, 1.0}}) {
    EXPECT_EQ(scales(c.name, c.shape).learning_rate, c.learning_rate) << c.name;
    EXPECT_EQ(scales(c.name, c.shape).weight_decay, c.weight_decay) << c.name;
  }
}

TEST(NamePatterns, MatchWholeNamesAndNameTheNearest) {
  const nn::NamePatterns patterns("block?.up.*, head.[bw]*");
  EXPECT_TRUE(patterns.matches("block1.up.weight"));
  EXPECT_TRUE(patterns.matches("head.bias"));
  EXPECT_FALSE(patterns.matches("block10.up.weight"));
  EXPECT_FALSE(patterns.matches("my.head.bias"));
  EXPECT_FALSE(nn::NamePatterns().matches(""));
  const std::vector<std::string> names{"block1.up.weight", "head.bias", "tail.bias"};
  patterns.require_matches("a.setting", names);
  try {
    nn::NamePatterns("head.*,heda.*").require_matches("a.setting", names);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what())
                  .find("a.setting: no parameter is called \"heda.*\"; the "
                        "nearest is \"head.bias\""),
              std::string::npos)
        << error.what();
  }
}

/// The arena after three steps on `ranks` ranks.
std::vector<float> updated(const OptimizerOptions& options, const nn::ParameterLayout& layout,
                           std::int64_t ranks) {
  std::vector<float> weights = arena_numbers(layout, 1);
  const BucketPlan plan(layout, ranks, 2048);
  ops::Context context(1);
  for (std::int64_t r = 0; r < ranks; ++r) {
    Optimizer optimizer(context, options, {layout, plan, r}, view_of(weights));
    for (std::int64_t step = 1; step <= 3; ++step) {
      const std::vector<float> gradients =
          arena_numbers(layout, static_cast<std::uint64_t>(10 + step));
      for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
        optimizer.rule.update(b, view_of(gradients), 0.01, 0.5, step);
      }
    }
  }
  return weights;
}

/// Elements of parameter `p` that are the same bits in both arenas.
bool same_in(const nn::PlacedParameter& placed, const std::vector<float>& left,
             const std::vector<float>& right) {
  const auto first = static_cast<std::size_t>(placed.offset);
  const auto count = static_cast<std::size_t>(placed.shape.count());
  return std::equal(left.begin() + static_cast<std::ptrdiff_t>(first),
                    left.begin() + static_cast<std::ptrdiff_t>(first + count),
                    right.begin() + static_cast<std::ptrdiff_t>(first));
}

TEST(ParameterGroups, GiveTheUpdatesOfAnOptimizerWithTheirNumbers) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamw,
                          OptimizerKind::kAdagrad}) {
    const OptimizerOptions plain{.kind = kind, .weight_decay = 0.25};
    OptimizerOptions grouped = plain;
    grouped.groups = *parse_groups("p2: weight_decay=2; p4,p5: weight_decay=0");
    OptimizerOptions doubled = plain;
    doubled.weight_decay = 0.5;
    OptimizerOptions none = plain;
    none.weight_decay = 0.0;
    const std::vector<float> found = updated(grouped, layout, 3);
    for (const nn::PlacedParameter& placed : layout.parameters) {
      const std::string& name = placed.spec.name;
      const OptimizerOptions& expected = name == "p2"                   ? doubled
                                         : name == "p4" || name == "p5" ? none
                                                                        : plain;
      EXPECT_TRUE(same_in(placed, found, updated(expected, layout, 1)))
          << name << " " << name_of(kind);
    }
  }
}

TEST(FrozenParameters, StayAndHaveNoState) {
  // The third is longer than a bucket, and the fifth ends within a block.
  nn::ParameterLayout layout = layout_with({3000, 10, 6000, 1, 5000, 1025});
  const std::vector<float> before = arena_numbers(layout, 1);
  const OptimizerOptions options{.kind = OptimizerKind::kAdamw, .weight_decay = 0.1};
  const std::vector<float> all = updated(options, layout, 1);
  for (const std::size_t p : {2U, 3U, 4U}) {
    layout.parameters[p].spec.rule = nn::ParameterRule::kFrozen;
  }
  for (const std::int64_t ranks : {1, 2, 3}) {
    const std::vector<float> after = updated(options, layout, ranks);
    for (const nn::PlacedParameter& placed : layout.parameters) {
      const bool frozen = placed.spec.rule == nn::ParameterRule::kFrozen;
      EXPECT_TRUE(same_in(placed, after, frozen ? before : all)) << placed.spec.name;
    }
    const BucketPlan plan(layout, ranks, 2048);
    std::int64_t elements = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const Ownership owned{layout, plan, r};
      elements += owned.state_elements();
      EXPECT_EQ(
          OwnedTensors::memory(owned, UpdateRule::states(options), DType::kFloat32).front().bytes,
          8 * owned.state_elements());
    }
    // In blocks of 1024: 3 + 1 + 5 + 2 trained ones, one that holds a frozen number, and what is
    // left of 6000 and 5000 behind 5 and 4 whole blocks.
    EXPECT_EQ(elements, (3 + 1 + 2 + 1 + 1 + 1) * 1024);
  }
  EXPECT_EQ(UpdateRule::state_names(options, layout.parameters[2].spec),
            std::vector<std::string>());
}

}  // namespace
}  // namespace strata::optim::test::parameter_groups_test
