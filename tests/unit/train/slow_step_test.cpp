#include "record/slow_step.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "in_process.hpp"
#include "loop/kernels_used.hpp"

namespace strata::train::slow_step_test {
namespace {

using ::testing::HasSubstr;

TEST(SlowStep, NamesThePartThatTakesTheTime) {
  StepTimes expected{.step = 1.0, .compute = 0.7, .bubble = 0.1};
  expected.communication.of(grid::Axis::kData) = 0.2;
  const StepForecast forecast{.machine = "h100", .times = expected};
  struct Case {
    std::function<void(StepTimes&)> change;
    double save_seconds;
    std::string said;
  };
  const std::vector<Case> cases{
      {[](StepTimes&) {}, 0.0, ""},
      {[](StepTimes& t) { t.compute += 0.99; }, 0.0, ""},
      {[](StepTimes& t) { t.compute += 1.01; }, 0.0,
       "a step takes 2.01 s, the forecast for h100 is 1 s: compute takes 1.71 s instead of 0.7 s"},
      {[](StepTimes& t) { t.communication.of(grid::Axis::kTensor) += 2.0; }, 0.0,
       "communication takes 2.2 s instead of 0.2 s; strata doctor --machine=FILE"},
      {[](StepTimes& t) { t.bubble += 1.5; }, 0.0, "pipeline bubble takes 1.6 s instead of 0.1 s"},
      {[](StepTimes& t) { t.data += 1.5; }, 0.0,
       "data takes 1.5 s instead of 0 s; the file system"},
      {[](StepTimes&) {}, 1.5, "checkpoint takes 1.5 s instead of 0 s"},
      {[](StepTimes& t) { t.step += 1.5; }, 0.0, "other takes 1.5 s instead of"}};
  for (const Case& one : cases) {
    StepTimes mean = expected;
    one.change(mean);
    mean.step =
        std::max(mean.step, mean.compute + mean.communication.total() + mean.bubble + mean.data);
    const std::string said = slow_step_text(forecast, mean, one.save_seconds);
    EXPECT_EQ(said.empty(), one.said.empty());
    EXPECT_THAT(said, HasSubstr(one.said));
  }
}

}  // namespace
}  // namespace strata::train::slow_step_test
