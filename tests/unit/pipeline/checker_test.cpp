#include "strata/pipeline/checker.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::pipeline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Action>& list_of(Schedule& schedule, std::int64_t stage) {
  return schedule.stage_actions.at(static_cast<std::size_t>(stage));
}

// The place of an action in its stage's list.
std::size_t find(Schedule& schedule, std::int64_t stage, ActionKind kind, std::int64_t microbatch) {
  const std::vector<Action>& list = list_of(schedule, stage);
  const auto found = std::find_if(list.begin(), list.end(), [&](const Action& action) {
    return action.kind == kind && action.microbatch == microbatch;
  });
  EXPECT_NE(found, list.end());
  return static_cast<std::size_t>(found - list.begin());
}

void erase(Schedule& schedule, std::int64_t stage, ActionKind kind, std::int64_t microbatch) {
  std::vector<Action>& list = list_of(schedule, stage);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(schedule, stage, kind, microbatch)));
}

// Takes an action out and puts it back in front of another.
void move_before(Schedule& schedule, std::int64_t stage, ActionKind kind, std::int64_t microbatch,
                 ActionKind other, std::int64_t other_microbatch) {
  const Action action = list_of(schedule, stage)[find(schedule, stage, kind, microbatch)];
  erase(schedule, stage, kind, microbatch);
  std::vector<Action>& list = list_of(schedule, stage);
  list.insert(
      list.begin() + static_cast<std::ptrdiff_t>(find(schedule, stage, other, other_microbatch)),
      action);
}

void swap_actions(Schedule& schedule, std::int64_t stage, ActionKind kind, std::int64_t a,
                  std::int64_t b) {
  std::swap(list_of(schedule, stage)[find(schedule, stage, kind, a)],
            list_of(schedule, stage)[find(schedule, stage, kind, b)]);
}

class EverySchedule : public ::testing::TestWithParam<ScheduleKind> {};

TEST_P(EverySchedule, IsSoundUpToEightStagesAndThirtyTwoMicrobatches) {
  for (std::int64_t stages = 1; stages <= 8; ++stages) {
    for (std::int64_t microbatches = 1; microbatches <= 32; ++microbatches) {
      const Schedule schedule = make_schedule(GetParam(), stages, microbatches);
      const CheckReport report = check(schedule);
      ASSERT_THAT(report.errors, IsEmpty()) << stages << " stages, " << microbatches;
      ASSERT_TRUE(report.passes_with_rendezvous_sends) << stages << " stages, " << microbatches;
      for (std::int64_t stage = 0; stage < stages; ++stage) {
        std::int64_t expected = 1;
        if (GetParam() == ScheduleKind::kGpipe) {
          expected = microbatches;
        } else if (GetParam() == ScheduleKind::k1f1b) {
          expected = std::min(stages - stage, microbatches);
        }
        ASSERT_EQ(report.peak_live[static_cast<std::size_t>(stage)], expected);
        ASSERT_EQ(live_bound(schedule, stage), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, EverySchedule,
                         ::testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1f1b,
                                           ScheduleKind::kForwardOnly),
                         [](const auto& instance) {
                           return "kind_" + std::string(name_of(instance.param));
                         });

TEST(Checker, CatchesADroppedReceive) {
  Schedule schedule = make_schedule(ScheduleKind::k1f1b, 3, 4);
  erase(schedule, 1, ActionKind::kReceiveActivation, 2);
  EXPECT_THAT(
      check(schedule).errors,
      ElementsAre(
          "stage 1: forward of microbatch 2: needs a receive-activation before it",
          "from stage 0 to stage 1: the activation of microbatch 2 is sent and never received"));
}

TEST(Checker, CatchesADroppedSend) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 2);
  erase(schedule, 1, ActionKind::kSendGradient, 1);
  EXPECT_THAT(
      check(schedule).errors,
      ElementsAre(
          "from stage 1 to stage 0: the gradient of microbatch 1 is received and never sent"));
}

TEST(Checker, CatchesSwappedSends) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 3);
  move_before(schedule, 0, ActionKind::kSendActivation, 0, ActionKind::kForward, 2);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("from stage 0 to stage 1: the activation of microbatch 1 is sent where "
                          "the activation of microbatch 0 is received; messages must be received "
                          "in the order in which they are sent"));
}

TEST(Checker, CatchesADuplicateAction) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 2);
  std::vector<Action>& list = list_of(schedule, 0);
  list.insert(list.begin() + 1, list[0]);
  EXPECT_THAT(check(schedule).errors, Contains("stage 0: forward of microbatch 0: appears twice"));
}

TEST(Checker, CatchesADuplicateMessage) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 2);
  std::vector<Action>& list = list_of(schedule, 0);
  list.insert(list.begin() + 1, list[1]);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0: send-activation of microbatch 0 to stage 1: appears twice",
                          "from stage 0 to stage 1: 3 messages are sent, 2 are received"));
}

TEST(Checker, CatchesACyclicWait) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 1);
  move_before(schedule, 0, ActionKind::kReceiveGradient, 0, ActionKind::kSendActivation, 0);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("deadlock: stage 0 waits at receive-gradient of microbatch 0 from stage "
                          "1, stage 1 waits at receive-activation of microbatch 0 from stage 0"));
}

TEST(Checker, ReportsAScheduleThatNeedsBufferedSends) {
  // Stage 0 sends four activations before it receives; stage 1 sends two gradients in between. In
  // the end each waits in a second send to the other.
  Schedule schedule = compute_order(ScheduleKind::kGpipe, 2, 4);
  std::vector<Action>& last = list_of(schedule, 1);
  const std::vector<Action> all = last;
  last = {all[0], all[1]};                                    // forward 0, 1
  last.insert(last.end(), all.begin() + 4, all.begin() + 8);  // both backwards of 0, 1
  last.insert(last.end(), {all[2], all[3]});                  // forward 2, 3
  last.insert(last.end(), all.begin() + 8, all.end());
  const CheckReport report = check(insert_communication(schedule));
  EXPECT_THAT(report.errors, IsEmpty());
  EXPECT_FALSE(report.passes_with_rendezvous_sends);
}

TEST(Checker, CatchesTooManyLiveActivations) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 4);
  schedule.kind = ScheduleKind::k1f1b;
  const CheckReport report = check(schedule);
  EXPECT_THAT(report.peak_live, ElementsAre(4, 4));
  EXPECT_THAT(
      report.errors,
      ElementsAre(
          "stage 0: forward of microbatch 3: holds activations of 4 microbatches, the limit is 2",
          "stage 1: forward of microbatch 3: holds activations of 4 microbatches, the limit is 1"));
}

TEST(Checker, CatchesAMissingBackward) {
  Schedule schedule = make_schedule(ScheduleKind::k1f1b, 2, 3);
  erase(schedule, 1, ActionKind::kBackwardWeight, 1);
  EXPECT_THAT(
      check(schedule).errors,
      ElementsAre(
          "stage 1: backward-weight of microbatch 1: is missing",
          "stage 1: forward of microbatch 2: holds activations of 2 microbatches, the limit is 1"));
}

TEST(Checker, CatchesWeightsOutOfOrder) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 1, 3);
  move_before(schedule, 0, ActionKind::kBackwardWeight, 0, ActionKind::kBackwardInput, 2);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0: backward-weight of microbatch 0: follows that of microbatch 1; "
                          "weight gradients must ascend"));
}

TEST(Checker, CatchesABackwardBeforeItsForward) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 1, 2);
  move_before(schedule, 0, ActionKind::kBackwardInput, 1, ActionKind::kForward, 1);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0: backward-input of microbatch 1: needs a forward before it"));
}

TEST(Checker, CatchesAWeightGradientBeforeItsInputGradient) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 1, 1);
  std::swap(schedule.stage_actions[0][1], schedule.stage_actions[0][2]);
  EXPECT_THAT(
      check(schedule).errors,
      ElementsAre("stage 0: backward-weight of microbatch 0: needs a backward-input before it"));
}

TEST(Checker, CatchesASendBeforeItsResult) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 1);
  move_before(schedule, 0, ActionKind::kSendActivation, 0, ActionKind::kForward, 0);
  EXPECT_THAT(
      check(schedule).errors,
      ElementsAre(
          "stage 0: send-activation of microbatch 0 to stage 1: needs a forward before it"));
}

TEST(Checker, CatchesAWrongPeer) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 3, 1);
  list_of(schedule, 0)[find(schedule, 0, ActionKind::kSendActivation, 0)].peer = 2;
  EXPECT_THAT(
      check(schedule).errors,
      Contains("stage 0: send-activation of microbatch 0 to stage 2: its peer must be stage 1"));
}

TEST(Checker, CatchesAMessageThatTheLastStageCannotSend) {
  Schedule schedule = make_schedule(ScheduleKind::kForwardOnly, 2, 1);
  list_of(schedule, 1).push_back({.kind = ActionKind::kSendActivation, .peer = 0});
  EXPECT_THAT(check(schedule).errors, Contains("stage 1: send-activation of microbatch 0 to stage "
                                               "0: this chunk exchanges no such message"));
}

TEST(Checker, CatchesAReduceThatIsEarlyOrMissing) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 1, 1);
  move_before(schedule, 0, ActionKind::kReduce, 0, ActionKind::kBackwardWeight, 0);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0: backward-weight of microbatch 0: follows the reduce"));
  erase(schedule, 0, ActionKind::kReduce, 0);
  EXPECT_THAT(check(schedule).errors, ElementsAre("stage 0: reduce: is missing"));
}

TEST(Checker, CatchesIndicesOutOfRangeAndMissingLists) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 2);
  list_of(schedule, 0)[0].microbatch = 2;
  EXPECT_THAT(
      check(schedule).errors,
      ElementsAre("stage 0: forward of microbatch 2: there are 2 microbatches and 1 chunks"));
  schedule.stage_actions.pop_back();
  EXPECT_THAT(check(schedule).errors, ElementsAre("1 lists of actions for 2 stages"));
}

TEST(Checker, CatchesGradientsInAForwardOnlySchedule) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 1, 1);
  schedule.kind = ScheduleKind::kForwardOnly;
  EXPECT_THAT(check(schedule).errors, Contains("stage 0: backward-input of microbatch 0: does not "
                                               "belong into a schedule of kind forward"));
}

TEST(Checker, CatchesChunksOfOneStageOutOfOrder) {
  Schedule schedule = make_schedule(ScheduleKind::kForwardOnly, 1, 1);
  schedule.chunks = 2;
  schedule.stage_actions = {
      {{.kind = ActionKind::kForward, .chunk = 1}, {.kind = ActionKind::kForward, .chunk = 0}}};
  EXPECT_THAT(check(schedule).errors,
              Contains("stage 0: forward of microbatch 0 (chunk 1): needs a forward before it"));
}

TEST(Checker, RequireSoundThrowsTheFirstError) {
  Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 2);
  EXPECT_NO_THROW(require_sound(schedule));
  swap_actions(schedule, 0, ActionKind::kSendActivation, 0, 1);
  try {
    require_sound(schedule);
    FAIL() << "an unsound schedule was accepted";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("unsound gpipe schedule: stage 0: send-activation of microbatch 1 to stage 1"));
  }
}

}  // namespace
}  // namespace strata::pipeline
