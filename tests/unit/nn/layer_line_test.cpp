// What a `layer =` line gives, and what it says of values that do not fit.
#include "strata/nn/layer_line.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/switch.hpp"

#include "error_of.hpp"

namespace strata::nn::layer_line_test {
namespace {

using testing::HasSubstr;
using Window = std::array<std::int64_t, 2>;

std::string refusal(const std::string& text, const std::function<void(LayerLine&)>& take) {
  return strata::test::error_of(
      [&] {
        LayerLine line(text);
        take(line);
      },
      ExitCode::kUsage);
}

TEST(LayerLine, TakesWindows) {
  LayerLine line("pool 3 2x5 stride=4x1 dilation=2");
  EXPECT_EQ(line.take_window("the window"), (Window{3, 3}));
  EXPECT_EQ(line.take_window("the window"), (Window{2, 5}));
  EXPECT_EQ(line.take_option_window("stride", {1, 1}), (Window{4, 1}));
  EXPECT_EQ(line.take_option_window("dilation", {1, 1}), (Window{2, 2}));
  EXPECT_EQ(line.take_option_window("spacing", {6, 7}), (Window{6, 7}));
  line.finish();
}

TEST(LayerLine, RefusesWhatIsNoWindow) {
  for (const std::string text : {"0", "3x0", "-1x2", "x3", "3x", "3x3x3", "3,3", "9999999999"}) {
    EXPECT_THAT(
        refusal("pool " + text, [](LayerLine& l) { (void)l.take_window("the window"); }),
        AllOf(HasSubstr("the window"), HasSubstr("\"3x5\""), HasSubstr("it has \"" + text + "\"")));
    EXPECT_THAT(refusal("pool stride=" + text,
                        [](LayerLine& l) {
                          (void)l.take_option_window("stride", {1, 1});
                        }),
                AllOf(HasSubstr("stride is \"" + text + "\""), HasSubstr("\"3x5\"")));
  }
  EXPECT_THAT(refusal("pool", [](LayerLine& l) { (void)l.take_window("the window"); }),
              HasSubstr("it has \"\""));
}

TEST(LayerLine, TakesNamesOfOtherPrograms) {
  LayerLine line("dense 3 bias=False sync=TRUE tied=0");
  EXPECT_EQ(line.take_enum("bias", Switch::kOn), Switch::kOff);
  EXPECT_EQ(line.take_enum("sync", Switch::kOff), Switch::kOn);
  EXPECT_EQ(line.take_enum("tied", Switch::kOn), Switch::kOff);
}

TEST(LayerLine, TakesWholeNumbersFromZero) {
  LayerLine line("pool padding=0");
  EXPECT_EQ(line.take_option_count("padding", 3, 0), 0);
  EXPECT_EQ(line.take_option_count("margin", 3, 0), 3);
  for (const std::string text : {"-1", "1.5", "", "9999999999"}) {
    EXPECT_THAT(refusal("pool padding=" + text,
                        [](LayerLine& l) { (void)l.take_option_count("padding", 0, 0); }),
                AllOf(HasSubstr("padding is \"" + text + "\""), HasSubstr("from 0")));
  }
}

TEST(LayerLine, RefusesNumbersThatAreNotFinite) {
  for (const std::string text : {"nan", "inf", "-inf", "-nan", "1e999", ""}) {
    EXPECT_THAT(
        refusal("norm rate=" + text, [](LayerLine& l) { (void)l.take_option_number("rate", 0.0); }),
        AllOf(HasSubstr("rate is \"" + text + "\""), HasSubstr("finite")));
  }
  EXPECT_THAT(refusal("dropout nan", [](LayerLine& l) { (void)l.take_probability("the rate"); }),
              AllOf(HasSubstr("the rate"), HasSubstr("finite"), HasSubstr("\"nan\"")));
}

TEST(LayerLine, TakesProbabilitiesBelowOne) {
  LayerLine line("dropout 0.25 rate=0");
  EXPECT_EQ(line.take_probability("the probability"), 0.25);
  EXPECT_EQ(line.take_option_probability("rate", 0.5), 0.0);
  for (const std::string text : {"1", "-0.1"}) {
    EXPECT_THAT(refusal("dropout " + text, [](LayerLine& l) { (void)l.take_probability("it"); }),
                HasSubstr("at least 0 and below 1"));
    EXPECT_THAT(refusal("dropout rate=" + text,
                        [](LayerLine& l) { (void)l.take_option_probability("rate", 0.0); }),
                AllOf(HasSubstr("rate is " + text), HasSubstr("at least 0 and below 1")));
  }
}

}  // namespace
}  // namespace strata::nn::layer_line_test
