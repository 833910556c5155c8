#include "commands/planning/plan_page.hpp"

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planned_runs.hpp"

namespace strata::app::plan_page_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

/// Whether every element ends within the one that holds it, and no text has bare markup.
void expect_well_formed(const std::string& page) {
  std::vector<std::string> open;
  std::size_t at = page.find('>') + 1;  // after the document type
  while ((at = page.find('<', at)) != std::string::npos) {
    const std::size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n/", 1));
    EXPECT_EQ(tag.find('<'), std::string::npos) << tag;
    EXPECT_EQ(count(tag, "\"") % 2, 0U) << tag;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_TRUE(open.empty());
  for (std::size_t amp = page.find('&'); amp != std::string::npos; amp = page.find('&', amp + 1)) {
    EXPECT_NE(page.find_first_of(";", amp), std::string::npos);
    EXPECT_THAT(page.substr(amp, 6), testing::MatchesRegex("&(amp;|lt;|gt;|quot;|#39;).*"));
  }
}

/// The page; STRATA_TEST_PAGES=DIR keeps it, to look at in a browser.
std::string page_of(const test::PlannedRun& run, const std::string& name,
                    const forecast::SearchResult* search = nullptr) {
  std::string page = plan_page(run.view(), name, 8, search);
  if (const char* directory = std::getenv("STRATA_TEST_PAGES")) {
    std::ofstream(std::string(directory) + "/" + name + ".html") << page;
  }
  expect_well_formed(page);
  return page;
}

TEST(PlanPage, LoadsNothingAndRunsNothing) {
  const forecast::SearchResult search = test::made_choices(60);
  const std::string page =
      page_of(test::planned_run({.data = 2, .pipeline = 2, .tensor = 2}), "small", &search);
  for (const char* part : {"http:", "https:", "<script", "<link", "href=", "url(", "@import",
                           "onload", "made-up <&>"}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
  EXPECT_THAT(page, HasSubstr("made-up &lt;&amp;&gt;"));
  EXPECT_EQ(count(page, "src="), count(page, "src=\"data:image/svg+xml;base64,"));
}

TEST(PlanPage, ShowsEachRankOnItsNode) {
  const std::string page =
      page_of(test::planned_run({.data = 4, .pipeline = 16, .tensor = 8}, 32), "4x16x8");
  EXPECT_EQ(count(page, "<title>rank "), 512U);
  EXPECT_EQ(count(page, ">node "), 64U + 1);  // and the line of the node hours
  EXPECT_THAT(page, HasSubstr("<title>rank 511: data 3, pipeline 15, tensor 7</title>"));
  EXPECT_THAT(page, HasSubstr("<td>480-511</td>"));
}

TEST(PlanPage, DrawsGroupsOfManyRanks) {
  const std::string page =
      page_of(test::planned_run({.data = 64, .pipeline = 4, .tensor = 4}), "64x4x4");
  EXPECT_EQ(count(page, "<title>rank "), 0U);
  EXPECT_EQ(count(page, ">node "), 128U + 1);
  EXPECT_THAT(page, HasSubstr("<title>ranks 0-7: stage 0</title>"));
  EXPECT_THAT(page, HasSubstr("<title>ranks 1016-1023: stage 3</title>"));
}

TEST(PlanPage, DrawsTheMemoryWithItsLimit) {
  test::PlannedRun run = test::planned_run({.data = 1, .pipeline = 1, .tensor = 1});
  EXPECT_THAT(page_of(run, "one"), HasSubstr("for a rank&#39;s arenas"));
  run.forecast.free_bytes = run.forecast.stages[0].memory_bytes / 2.0;
  run.forecast.fits = false;
  EXPECT_THAT(page_of(run, "too-large"), HasSubstr("too much, it does not fit"));
}

TEST(PlanPage, ShowsTheSearchWithTheChosenGrid) {
  const test::PlannedRun run = test::planned_run({.data = 2, .pipeline = 2, .tensor = 2});
  forecast::SearchResult search = test::made_choices(200);
  const std::string page = page_of(run, "search", &search);
  EXPECT_EQ(count(page, "r=\"3\""), 200U);
  EXPECT_EQ(count(page, "r=\"7\""), 1U);
  EXPECT_THAT(page, HasSubstr("Less memory for more time"));
  search.choices.resize(1);
  EXPECT_THAT(page_of(run, "single", &search), Not(HasSubstr("Less memory for more time")));
}

TEST(PlanPage, LeavesOutAPictureOfTooManyActions) {
  const test::PlannedRun run = test::planned_run({.data = 1, .pipeline = 8, .tensor = 1}, 8000);
  EXPECT_THAT(page_of(run, "long"), HasSubstr("too many for a picture"));
}

}  // namespace
}  // namespace strata::app::plan_page_test
