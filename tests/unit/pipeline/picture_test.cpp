#include "strata/pipeline/picture.hpp"

#include <cstddef>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace strata::pipeline {
namespace {

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

TEST(Picture, HasABoxForEachComputeActionWithItsMicrobatch) {
  const Schedule schedule = make_schedule(ScheduleKind::kZbV, {3, 11, 2});
  const std::string svg = picture_of(schedule, simulate(schedule, equal_costs(3, 1.0, 2.0, 1.0)));
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

}  // namespace
}  // namespace strata::pipeline
