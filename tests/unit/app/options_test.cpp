#include "strata/config/options.hpp"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "strata/config/config_file.hpp"

namespace strata::app::options_test {
namespace {

TEST(OptionTable, HasSettingsOfEverySectionAndNoOthers) {
  std::set<std::string> listed;
  for (const config::Section& section : config::section_table()) {
    listed.insert(section.name);
  }
  std::set<std::string> used;
  for (const config::Option& option : config::option_table()) {
    used.insert(option.key.substr(0, option.key.find('.')));
  }
  EXPECT_EQ(used, listed);
}

TEST(OptionTable, NeedsNameSettingsAndTheirValues) {
  for (const config::Option& option : config::option_table()) {
    for (const config::Need& need : option.needs) {
      SCOPED_TRACE(option.key + " needs " + need.setting);
      EXPECT_NE(option.help.find(need.setting), std::string::npos);
      const auto other =
          std::ranges::find(config::option_table(), need.setting, &config::Option::key);
      ASSERT_NE(other, config::option_table().end());
      EXPECT_TRUE(!need.values.empty() || !need.instead.empty());
      for (const std::string& value : need.values) {
        config::RunConfig config;
        EXPECT_NO_THROW(other->set(config, value));
        EXPECT_EQ(other->get(config), value);
      }
    }
  }
}

TEST(OptionTable, SomeValuesLeaveASettingOut) {
  config::RunConfig config;
  EXPECT_FALSE(config::is_set(config, "train.repeat_every"));
  config.train.repeat_every = 0;
  EXPECT_FALSE(config::is_set(config, "train.repeat_every"));
  config.train.repeat_every = 7;
  EXPECT_TRUE(config::is_set(config, "train.repeat_every"));
}

TEST(ConfigFile, ChangesOnlyTheSettingsThatChanged) {
  const std::string text =
      "# head\n[batch]\nglobal = 64  # samples\n\n# grid\n[parallel]\ndata=2\n[batch]\nmicro = 4";
  EXPECT_EQ(config::with_settings(text, {}), text + "\n");
  EXPECT_EQ(config::with_settings(text, {{"batch.micro", "8"},
                                         {"parallel.data", "4"},
                                         {"parallel.tensor", "2"},
                                         {"train.recompute", "full"},
                                         {"train.steps", "9"}}),
            "# head\n[batch]\nglobal = 64  # samples\n\n# grid\n[parallel]\ndata = 4\ntensor = 2\n"
            "[batch]\nmicro = 8\n\n[train]\nrecompute = full\nsteps = 9\n");
  EXPECT_EQ(config::with_settings(text, {{"parallel.tensor", "2"}, {"batch.seed", "1"}}),
            "# head\n[batch]\nglobal = 64  # samples\nseed = 1\n\n# grid\n[parallel]\ndata=2\n"
            "tensor = 2\n[batch]\nmicro = 4\n");
  EXPECT_EQ(config::with_settings("\n", {{"a.b", "1"}}), "\n\n[a]\nb = 1\n");
  EXPECT_EQ(config::with_settings("", {}), "");
  config::RunConfig from;
  config::RunConfig to;
  to.batch.global = from.batch.global + 1;
  EXPECT_EQ(config::changed_settings(from, to),
            (config::ChangedSettings{{"batch.global", std::to_string(to.batch.global)}}));
}

}  // namespace
}  // namespace strata::app::options_test
