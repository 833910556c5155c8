#include "strata/config/options.hpp"

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

}  // namespace
}  // namespace strata::app
