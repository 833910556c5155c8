#include "strata/pipeline/schedule.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/text.hpp"

namespace strata::pipeline::schedule_test {
namespace {

using ::testing::ElementsAre;

// One letter and the microbatch for each action: F forward, B input gradient, W weight gradient, S
// and R an activation sent and received, s and r a gradient, X reduce.
std::string letters_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    text += text.empty() ? "" : " ";
    text += "FBWSRsrX"[static_cast<std::size_t>(action.kind)];
    text += action.kind == ActionKind::kReduce ? "" : std::to_string(action.microbatch);
  }
  return text;
}

std::vector<std::string> letters_of(const Schedule& schedule) {
  std::vector<std::string> stages;
  for (const std::vector<Action>& actions : schedule.stage_actions) {
    stages.push_back(letters_of(actions));
  }
  return stages;
}

TEST(Schedule, GpipeComputesAllForwardsThenAllBackwards) {
  EXPECT_THAT(letters_of(compute_order(ScheduleKind::kGpipe, {2, 3})),
              ElementsAre("F0 F1 F2 B0 W0 B1 W1 B2 W2", "F0 F1 F2 B0 W0 B1 W1 B2 W2"));
}

TEST(Schedule, OneForwardOneBackwardWarmsUpByItsDistanceFromTheEnd) {
  EXPECT_THAT(
      letters_of(compute_order(ScheduleKind::k1f1b, {3, 4})),
      ElementsAre("F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3", "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3",
                  "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3"));
}

TEST(Schedule, OneForwardOneBackwardHasNoMoreWarmUpThanMicrobatches) {
  EXPECT_THAT(letters_of(compute_order(ScheduleKind::k1f1b, {4, 2})),
              ElementsAre("F0 F1 B0 W0 B1 W1", "F0 F1 B0 W0 B1 W1", "F0 F1 B0 W0 B1 W1",
                          "F0 B0 W0 F1 B1 W1"));
}

TEST(Schedule, PutsEachMessageBesideTheActionThatProducesOrConsumesIt) {
  const Schedule schedule = make_schedule(ScheduleKind::k1f1b, {3, 2});
  EXPECT_THAT(letters_of(schedule), ElementsAre("F0 S0 F1 S1 r0 B0 W0 r1 B1 W1 X",
                                                "R0 F0 S0 R1 F1 S1 r0 B0 s0 W0 r1 B1 s1 W1 X",
                                                "R0 F0 B0 s0 W0 R1 F1 B1 s1 W1 X"));
  for (const Action& action : schedule.stage_actions[1]) {
    const bool down =
        action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kReceiveGradient;
    if (is_send(action.kind) || is_receive(action.kind)) {
      EXPECT_EQ(action.peer, down ? 2 : 0) << text_of(action);
    } else {
      EXPECT_EQ(action.peer, kNoPeer) << text_of(action);
    }
  }
}

TEST(Schedule, ForwardOnlyHasNoGradientsAndNoReduce) {
  EXPECT_THAT(letters_of(make_schedule(ScheduleKind::kForwardOnly, {2, 2})),
              ElementsAre("F0 S0 F1 S1", "R0 F0 R1 F1"));
}

TEST(Schedule, OneStageHasNoMessages) {
  EXPECT_THAT(letters_of(make_schedule(ScheduleKind::kGpipe, {1, 2})),
              ElementsAre("F0 F1 B0 W0 B1 W1 X"));
}

TEST(Schedule, ChunksRunThroughAllStagesBeforeTheNextChunk) {
  Schedule schedule = compute_order(ScheduleKind::kForwardOnly, {2, 1});
  schedule.chunks = 2;
  schedule.order = ChunkOrder::loop(2, 2);
  schedule.stage_actions = {
      {{.kind = ActionKind::kForward, .chunk = 0}, {.kind = ActionKind::kForward, .chunk = 1}},
      {{.kind = ActionKind::kForward, .chunk = 0}, {.kind = ActionKind::kForward, .chunk = 1}}};
  EXPECT_EQ(downstream(schedule, {.stage = 1, .chunk = 0}), (StageChunk{.stage = 0, .chunk = 1}));
  EXPECT_EQ(upstream(schedule, {.stage = 0, .chunk = 1}), (StageChunk{.stage = 1, .chunk = 0}));
  EXPECT_EQ(upstream(schedule, {.stage = 0, .chunk = 0}), std::nullopt);
  EXPECT_EQ(downstream(schedule, {.stage = 1, .chunk = 1}), std::nullopt);
  EXPECT_THAT(letters_of(insert_communication(schedule)),
              ElementsAre("F0 S0 R0 F0 S0", "R0 F0 S0 R0 F0"));
}

TEST(Schedule, RefusesCommunicationTwiceAndEmptySchedules) {
  const Schedule schedule = make_schedule(ScheduleKind::kGpipe, {2, 2});
  EXPECT_THROW((void)insert_communication(schedule), std::logic_error);
  EXPECT_THROW((void)compute_order(ScheduleKind::kGpipe, {0, 1}), std::logic_error);
  EXPECT_THROW((void)compute_order(ScheduleKind::k1f1b, {1, 0}), std::logic_error);
}

TEST(Schedule, ActionsAndKindsHaveNames) {
  EXPECT_EQ(text_of({.kind = ActionKind::kSendActivation, .microbatch = 3, .peer = 1}),
            "send-activation of microbatch 3 to stage 1");
  EXPECT_EQ(text_of({.kind = ActionKind::kReceiveGradient, .microbatch = 0, .chunk = 2, .peer = 4}),
            "receive-gradient of microbatch 0 (chunk 2) from stage 4");
  EXPECT_EQ(text_of({.kind = ActionKind::kReduce}), "reduce");
  EXPECT_EQ(enum_from_name<ScheduleKind>("1f1b"), ScheduleKind::k1f1b);
  EXPECT_EQ(joined_names<ScheduleKind>(),
            "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, forward, file");
}

}  // namespace
}  // namespace strata::pipeline::schedule_test
