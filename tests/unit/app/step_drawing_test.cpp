#include "drawing/step_drawing.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "strata/pipeline/schedule_file.hpp"

namespace strata::app::step_drawing_test {
namespace {

using namespace pipeline;

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

TEST(StepDrawing, HasABoxForEachComputeActionWithItsMicrobatch) {
  const Schedule schedule = make_schedule(ScheduleKind::kZbV, {3, 11, 2});
  const std::string svg = svg_of(schedule, simulate(schedule, equal_costs(3, 100.0, 200.0, 100.0)));
  EXPECT_EQ(svg.find("<svg "), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  const std::size_t actions = 3 * 11 * 2 * 3;
  const std::size_t legend = 2 * 3;
  // Besides: the background and one bar a rank.
  EXPECT_EQ(count(svg, "<rect "), actions + legend + 1 + 3);
  EXPECT_EQ(count(svg, ">10</text>"), actions / 11);
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
  EXPECT_EQ(count(svg, ">rank 2</text>"), 1U);
}

TEST(StepDrawing, StaysReadableWhereOneMeasuredActionIsVeryShort) {
  const Schedule schedule = make_schedule(ScheduleKind::k1f1b, {2, 4});
  Simulation measured = simulate(schedule, equal_costs(2, 10.0, 20.0, 10.0));  // 190 ms
  measured.actions.front().end_seconds = measured.actions.front().begin_seconds + 1e-3;
  const std::string svg = svg_of(schedule, measured, {.ranks = {3, 7}});
  EXPECT_EQ(count(svg, " width=\"984\""), 1U);  // 900 for the rows, 84 for labels and margins
  for (const char* text : {">rank 3<", ">rank 7<", ">0 ms<", ">50<", ">100<", ">150<"}) {
    EXPECT_EQ(count(svg, text), 1U) << text;
  }
  EXPECT_EQ(count(svg, "v4\""), 4U);
}

TEST(StepDrawing, NamesShardingActionsThatTakeTime) {
  const Schedule schedule =
      schedule_of(parse_schedule("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n", "s.csv"), "s.csv");
  StageCosts costs = equal_costs(1, 1.0, 1.0, 1.0);
  costs.times.front().front().unshard_seconds = 4.0;
  costs.times.front().front().reduce_gradient_seconds = 16.0;
  const std::string svg = svg_of(schedule, simulate(schedule, costs));
  EXPECT_EQ(count(svg, ">unshard</text>"), 1U);
  EXPECT_EQ(count(svg, ">reshard</text>"), 0U);
  EXPECT_EQ(count(svg, ">reduce gradient</text>"), 1U);
}

TEST(StepDrawing, NamesABackwardPassOfBothGradients) {
  const Schedule schedule = make_schedule(ScheduleKind::k1f1b, {2, 4});
  const std::string fused = svg_of(schedule, simulate(schedule, equal_costs(2, 10.0, 30.0, 0.01)));
  EXPECT_EQ(count(fused, ">backward (input and weight gradient)</text>"), 1U);
  EXPECT_EQ(count(fused, ">input gradient</text>"), 0U);
  EXPECT_EQ(count(fused, ">weight gradient</text>"), 0U);
  const std::string split = svg_of(schedule, simulate(schedule, equal_costs(2, 10.0, 20.0, 10.0)));
  EXPECT_EQ(count(split, ">input gradient</text>"), 1U);
  EXPECT_EQ(count(split, ">weight gradient</text>"), 1U);
}

TEST(StepDrawing, TakesAWidth) {
  const Schedule schedule = make_schedule(ScheduleKind::k1f1b, {4, 200});
  const std::string svg =
      svg_of(schedule, simulate(schedule, equal_costs(4, 1.0, 2.0, 0.0)), {}, 1000.0);
  EXPECT_EQ(count(svg, " width=\"1084\""), 1U);  // 84 for labels and margins
  EXPECT_EQ(count(svg, ">199</text>"), 0U);
  const std::size_t actions = 4 * 200 * 2;
  EXPECT_EQ(count(svg, "<rect "), actions + 2 + 1 + 4);
}

}  // namespace
}  // namespace strata::app::step_drawing_test
