#include "strata/train/config_changes.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace strata::train::config_changes_test {
namespace {

using Changes = std::vector<std::string>;

TEST(ConfigChanges, NamesEachSettingThatDiffers) {
  struct Case {
    const char* before;
    const char* now;
    Changes changes;
  };
  for (const Case& one : std::vector<Case>{
           {"", "", {}},
           {"[a]\nx = 1\n", "[a]\nx = 1  # default\n", {}},
           {"[a]\nx = 1\ny = 2\n[b]\nx = 3\n",
            "# a comment\n[b]\nx = 4\n[a]\ny = 5 # derived\nx = 1\n",
            {"b.x: 3 -> 4", "a.y: 2 -> 5"}},
           {"[a]\nold = 1\n", "[a]\nfresh = 1\n", {}},
           {"[run]\ndir = a\nresume = never\nseed = 1\n",
            "[run]\ndir = b\nresume = auto\nseed = 2\n",
            {"run.seed: 1 -> 2"}},
           {"[data]\ntest = t.h5\n", "[data]\ntest = \n", {"data.test: t.h5 -> \"\""}},
           {"[parallel]\ndata = 0  # derived: 2\n", "[parallel]\ndata = 0  # derived: 4\n", {}},
           {"[model]\nlayer = dense 4\nlayer = relu\n",
            "[model]\nlayer = dense 4\nlayer = tanh\n",
            {"model.layer: dense 4, relu -> dense 4, tanh"}}}) {
    EXPECT_EQ(config_changes(one.before, one.now), one.changes) << one.now;
  }
}

}  // namespace
}  // namespace strata::train::config_changes_test
