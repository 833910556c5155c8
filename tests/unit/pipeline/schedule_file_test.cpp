#include "strata/pipeline/schedule_file.hpp"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline::schedule_file_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string message_of(const std::string& text) {
  try {
    const ScheduleFile file = parse_schedule(text, "s.csv");
    const Schedule schedule = schedule_of(file, "s.csv");
    const std::vector<std::string> errors = file_errors(file, schedule, check(schedule), "s.csv");
    return errors.empty() ? "sound" : fmt::format("{}", fmt::join(errors, "\n"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
}

// Lines of the stages from 1 on.
std::string text_of_stages(int count) {
  std::string text;
  for (int stage = 1; stage <= count; ++stage) {
    text += std::to_string(stage) + "F0\n";
  }
  return text;
}

// Two ranks with two stages each, placed as a V: both kinds of backward, waits, overlap, and
// actions that strata does not run.
constexpr const char* kCompute =
    "0UNSHARD,0F0,0F1,3F0,3I0,3W0,(3F1;0B0)OVERLAP_F_B,3B1,0B1,0REDUCE_GRAD\n"
    ",1F0,2F0,1F1,2F1,,2B0,1B0,2I1,1I1,2W1,1W1\n";
constexpr const char* kMessages =
    "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,3RECV_F1,3F1,3B1,3SEND_B1,"
    "0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1,2RECV_B0,2B0,1I0,1SEND_B0,"
    "1W0,2RECV_B1,2B1,1B1,1SEND_B1\n";

TEST(ScheduleFile, IsReadProvenAndWrittenBackToTheSameCells) {
  for (const std::string text : {kCompute, kMessages}) {
    const ScheduleFile file = parse_schedule(text, "s.csv");
    EXPECT_EQ(text_of(file), text);
    const Schedule schedule = schedule_of(file, "s.csv");
    EXPECT_EQ(schedule.stages, 2);
    EXPECT_EQ(schedule.chunks, 2);
    EXPECT_EQ(schedule.microbatches, 2);
    EXPECT_EQ(schedule.order, ChunkOrder::v(2, 2));
    const CheckReport report = check(schedule);
    EXPECT_THAT(report.errors, IsEmpty());
    EXPECT_THAT(report.descending_weights, IsEmpty());
    // All compute actions run.
    const Simulation simulation = simulate(schedule, equal_costs(2, 1.0, 1.0, 1.0));
    EXPECT_EQ(simulation.busy_seconds, (std::vector<double>{12.0, 12.0}));
    // Spaces and a missing end of the last line change nothing.
    EXPECT_EQ(parse_schedule(" " + text.substr(0, text.size() - 1), "s.csv"), file);
  }
}

TEST(ScheduleFile, ShardingActionsTakeTheirTimesWhereTheyStand) {
  struct Row {
    std::string text;
    double makespan;
    double makespan_of_compute;
    std::vector<double> exposed;
  };
  const std::vector<Row> rows = {
      {"0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n", 4 + 3 + 0.5 + 16, 3, {4 + 0.5 + 16}},
      // Rank 1 gathers while rank 0 does.
      {"0UNSHARD,0F0,0B0,0REDUCE_GRAD\n1UNSHARD,1F0,1B0\n", 4 + 2 * 3 + 16, 6, {4 + 16, 4}},
      {"0F0,0UNSHARD,0SEND_F0\n1RECV_F0,1RESHARD,1F0\n", 1 + 4 + 0.5 + 1, 2, {4, 0.5}},
      {"0F0,(0UNSHARD;0F1;0RESHARD)OVERLAP_F_B\n", 2 + 4 + 0.5, 2, {4 + 0.5}}};
  for (const Row& row : rows) {
    const Schedule schedule = schedule_of(parse_schedule(row.text, "s.csv"), "s.csv");
    EXPECT_THAT(check(schedule).errors, IsEmpty()) << row.text;
    StageCosts costs = equal_costs(schedule.stages, 1.0, 1.0, 1.0);
    const Simulation without = simulate(schedule, costs);
    EXPECT_EQ(without.makespan_seconds, row.makespan_of_compute) << row.text;
    for (std::vector<ChunkTimes>& own : costs.times) {
      own.front().unshard_seconds = 4.0;
      own.front().reshard_seconds = 0.5;
      own.front().reduce_gradient_seconds = 16.0;
    }
    const Simulation simulation = simulate(schedule, costs);
    EXPECT_EQ(simulation.makespan_seconds, row.makespan) << row.text;
    EXPECT_EQ(simulation.busy_seconds, without.busy_seconds) << row.text;
    EXPECT_EQ(simulation.exposed_seconds, row.exposed) << row.text;
  }
}

TEST(ScheduleFile, EveryKindOfScheduleIsWrittenAndReadBack) {
  for (const auto& [kind, chunks] :
       std::vector<std::pair<ScheduleKind, std::int64_t>>{{ScheduleKind::kGpipe, 1},
                                                          {ScheduleKind::k1f1b, 1},
                                                          {ScheduleKind::kInterleaved, 3},
                                                          {ScheduleKind::kZbH1, 1},
                                                          {ScheduleKind::kZbH2, 1},
                                                          {ScheduleKind::kZbV, 2}}) {
    for (const auto& [backward, content] : std::vector<std::pair<nn::BackwardOrder, FileContent>>{
             {nn::BackwardOrder::kFused, FileContent::kCompute},
             {nn::BackwardOrder::kFused, FileContent::kMessages},
             {nn::BackwardOrder::kSplit, FileContent::kCompute},
             {nn::BackwardOrder::kSplit, FileContent::kMessages}}) {
      const Schedule schedule = make_schedule(kind, {4, 9, chunks}, backward);
      const ScheduleFile file = file_of(schedule, content);
      EXPECT_EQ(has_messages(file), content == FileContent::kMessages);
      EXPECT_EQ(parse_schedule(text_of(file), "s.csv"), file);
      const Schedule read = schedule_of(file, "s.csv");
      EXPECT_THAT(check(read).errors, IsEmpty()) << name_of(kind);
      EXPECT_EQ(read.order, schedule.order);
      const StageCosts costs = equal_costs(4, 1.0, 2.0, 0.5, 0.25);
      EXPECT_EQ(simulate(read, costs).makespan_seconds, simulate(schedule, costs).makespan_seconds)
          << name_of(kind);
      EXPECT_EQ(converted(file, FileContent::kCompute, "s.csv"),
                file_of(schedule, FileContent::kCompute));
    }
  }
}

TEST(ScheduleFile, WeightGradientsOutOfOrderAreFoundButSound) {
  const ScheduleFile file = parse_schedule("0F0,0F1,0I0,0I1,0W1,0W0\n", "s.csv");
  const Schedule schedule = schedule_of(file, "s.csv");
  const CheckReport report = check(schedule);
  EXPECT_THAT(report.errors, IsEmpty());
  ASSERT_EQ(report.descending_weights.size(), 1U);
  EXPECT_EQ(place_text(file, schedule, report.descending_weights.front(), "s.csv"),
            "s.csv:1: cell 6 (0W0)");
}

TEST(ScheduleFile, FaultsNameLineAndCell) {
  struct Case {
    std::string text;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"0F0,0X0\n", "s.csv:1: cell 2 is \"0X0\"; an action is a stage"},
      {"0F0\n1F\n", "s.csv:2: cell 1 is \"1F\"; an action is a stage"},
      {"0F0z\n", "s.csv:1: cell 1 is \"0F0z\""},
      {"F0\n", "cell 1 is \"F0\""},
      {"0F99999999999999999999\n", "s.csv:1: cell 1"},
      {"0F0,0BW0\n", "in this older form BW"},
      {"0F0,0B0,0W0\n", "s.csv:1: cell 3 is \"0W0\"; a B before it"},
      {"(0F0;0F1)\n", "OVERLAP_F_B"},
      {"(0F0)OVERLAP_F_B\n", "two or more"},
      {"0F0\n\n1F0\n", "a line without actions"},
      {"", "has no actions"},
      {"0F0\n0F1\n", "stage 0 is on line 1 and on line 2"},
      {"0F0\n2F0\n", "has no actions of stage 1, but of stage 2"},
      {"0F0,0B0,0B0\n",
       "s.csv:1: cell 2 (0B0): stage 0: backward-input of microbatch 0: appears "
       "twice"},
      {std::string(1000, ' ') + "0F65535\n" + text_of_stages(200), "201 chunks x 65536"},
      {"0F0,0I0\n", "s.csv:1: stage 0: backward-weight of microbatch 0: is missing"},
      {"0B0,0F0\n",
       "s.csv:1: cell 1 (0B0): stage 0: backward-input of microbatch 0: needs a "
       "forward before it"},
      {"0F0,0SEND_F0\n1F0\n",
       "s.csv:2: cell 1 (1F0): stage 1: forward of microbatch 0: needs a "
       "receive-activation before it"},
      {"0F0,0F1,0SEND_F1,0SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1\n",
       "s.csv:1: cell 3 (0SEND_F1): from stage 0 to stage 1: the activation of microbatch 1 is "
       "sent where the activation of microbatch 0 is received; messages must be received in the "
       "order in which they are sent"},
      {"0F0,0F1\n1F1,1F0\n",
       "s.csv:1: cell 1 (0F0): from stage 0 to stage 1: the activation of microbatch 0 is sent"},
      {"0F0,0F1,0SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1\n",
       "s.csv:2: cell 3 (1RECV_F1): from stage 0 to stage 1: the activation of microbatch 1 is "
       "received and never sent"},
      {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
       "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1\n",
       "s.csv:1: cell 7 (0RECV_B1): from stage 1 to stage 0: the gradient of microbatch 1 is "
       "received and never sent"},
      {"0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1F1\n",
       "s.csv:2: cell 3 (1F1): stage 1: forward of microbatch 1: needs a receive-activation before "
       "it\ns.csv:1: cell 4 (0SEND_F1): from stage 0 to stage 1: the activation of microbatch 1 is "
       "sent and never received"},
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1RECV_F0,1B0,1SEND_B0\n",
       "\ns.csv:2: cell 1 (1RECV_F0): from stage 0 to stage 1: 1 messages are sent, 2 are "
       "received"},
      {"0F0,0RECV_B0,0B0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "s.csv:1: cell 2 (0RECV_B0): deadlock: stage 0 waits at receive-gradient of microbatch 0 "
       "from stage 1, stage 1 waits at receive-activation of microbatch 0 from stage 0"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
       "s.csv:1: cell 2 (0B0): deadlock: stage 0 waits at receive-gradient of microbatch 0"},
      {"0F0,0RECV_F0\n", "this chunk exchanges no such message"}};
  for (const Case& test : cases) {
    EXPECT_THAT(message_of(test.text), HasSubstr(test.message)) << test.text;
  }
  EXPECT_EQ(message_of(kCompute), "sound");
}

}  // namespace
}  // namespace strata::pipeline::schedule_file_test
