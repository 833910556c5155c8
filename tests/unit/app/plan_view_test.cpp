#include "commands/planning/plan_view.hpp"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planned_runs.hpp"

namespace strata::app::plan_view_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanView, SaysWhatAStepTakes) {
  const test::PlannedRun run = test::planned_run({.data = 2, .pipeline = 2, .tensor = 2});
  const std::string text = forecast_text(run.view());
  for (const char* line :
       {"machine: made-up <&> (a test)\n",
        "grid: 2 data x 2 pipeline x 2 tensor, 8 ranks on 1 node", ", MFU 41.2 %\n",
        "matrix products", "more replicas (parallel.data)", "memory per rank", "activations",
        " are free\n", "traffic per rank and step", "100,000 steps without a break: 9 h 12 min",
        "checkpoint: 3.00 GiB in 12 s, every 30 min 00 s",
        "end of training: after 9 h 16 min, of which 0.7 % go into checkpoints\n",
        "node hours: 9.27"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text,
              AllOf(Not(HasSubstr("failures")), Not(HasSubstr("kWh")), Not(HasSubstr("cost"))));
}

TEST(PlanView, ListsThePartsWithTheirShares) {
  forecast::Forecast forecast;
  forecast.step_seconds = 2.0;
  forecast.parts = {{.name = "a", .seconds = 1.5, .setting = "x = 1"},
                    {.name = "b", .seconds = 0.5, .setting = ""}};
  EXPECT_EQ(part_rows(forecast), (Rows{{"time of a step", "", "share", "setting to change"},
                                       {"a", "1.5 s", "75.0 %", "x = 1"},
                                       {"b", "500 ms", "25.0 %", "-"},
                                       {"total", "2 s", "100 %", ""}}));
}

TEST(PlanView, SaysHowMuchMemoryIsMissing) {
  test::PlannedRun run = test::planned_run({.data = 1, .pipeline = 2, .tensor = 1});
  run.forecast.stages[1].memory_bytes = 5.0 * 1073741824.0;
  run.forecast.free_bytes = 4.0 * 1073741824.0;
  run.forecast.fits = false;
  EXPECT_EQ(fit_line(run.view()),
            "memory: a rank of stage 1 needs 5.00 GiB of 4.00 GiB: 1.00 GiB too much, it does not "
            "fit");
}

TEST(PlanView, TellsTheEndWithFailuresAndPrices) {
  test::PlannedRun run = test::planned_run({.data = 1, .pipeline = 2, .tensor = 1});
  run.conditions = {.step_seconds = 36.0,
                    .steps = 10000.0,
                    .checkpoint_seconds = 300.0,
                    .interval_seconds = 3600.0,
                    .nodes = 64.0,
                    .failures_per_node_day = 24.0 / 20.0 / 64.0,
                    .restart_seconds = 600.0,
                    .watts = 512000.0,
                    .kwh_price = 0.25,
                    .node_hour_price = 10.0};
  EXPECT_THAT(completion_lines(run.view()),
              testing::ElementsAre(
                  "10,000 steps without a break: 4 d 4 h",
                  "checkpoint: 3.00 GiB in 5 min 00 s, every 1 h 00 min: 8 h 20 min in all",
                  "failures: one in 20 h 00 min on 64 nodes, 5.57 until the end; a restart takes "
                  "10 min 00 s",
                  "best time between checkpoints: checkpoint.minutes = 106, the end then after "
                  "4 d 15 h",
                  "end of training: after 4 d 16 h, of which 10.9 % go into checkpoints, repeated "
                  "steps and restarts",
                  "node hours: 7,184; energy: 57,471 kWh; cost: 86,207"));
  run.conditions.failures_per_node_day = 1e9;
  EXPECT_THAT(completion_lines(run.view()), Contains(HasSubstr("end of training: never")));
}

TEST(PlanView, WritesTimesWithThreeDigits) {
  for (const auto& [seconds, text] : {
           std::pair(1.5e-5, "15 us"),
           {0.0123, "12.3 ms"},
           {1.234, "1.23 s"},
           {90.0, "1 min 30 s"},
       }) {
    EXPECT_EQ(time_text(seconds), text);
  }
}

TEST(PlanView, ShowsTheTenFastestAndThoseThatAreSmaller) {
  const forecast::SearchResult result = test::made_choices(40);
  EXPECT_EQ(choice_rows(result.choices, 10).size(), 11U);
  EXPECT_THAT(choice_rows(result.choices, 10)[2],
              testing::ElementsAre("2 x 2 x 2", "2", "8 x 1", "1f1b", "selective", "25", "1.01 s",
                                   "39.6 %", "22.38 GiB", "other"));
  const std::string text = search_text(result);
  EXPECT_THAT(text, AllOf(HasSubstr("43 grids, of which 3 do not fit the memory"),
                          HasSubstr("less memory for more time")));
}

}  // namespace
}  // namespace strata::app::plan_view_test
