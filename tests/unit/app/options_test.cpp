#include "strata/config/options.hpp"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace strata::app {
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

}  // namespace
}  // namespace strata::app
