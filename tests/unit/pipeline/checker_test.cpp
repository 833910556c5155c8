#include "strata/pipeline/checker.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline::checker_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum ActionKind;

std::vector<Action>& list_of(Schedule& schedule, std::int64_t stage) {
  return schedule.stage_actions.at(static_cast<std::size_t>(stage));
}

// The index of an action in its stage's list.
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

void duplicate(Schedule& schedule, std::size_t at) {
  std::vector<Action>& list = list_of(schedule, 0);
  list.insert(list.begin() + 1, list[at]);
}

/// A kind of schedule and the most activations of one chunk that its stages hold.
struct Kind {
  ScheduleKind kind;
  std::int64_t most_chunks;
  std::int64_t (*peak)(const ScheduleSize& size);
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << name_of(kind.kind);
}

class EverySchedule : public ::testing::TestWithParam<Kind> {};

TEST_P(EverySchedule, IsSoundUpToEightStagesAndThirtyTwoMicrobatches) {
  const std::int64_t least_chunks = GetParam().kind == ScheduleKind::kZbV ? 2 : 1;
  ScheduleSize size;
  for (size.chunks = least_chunks; size.chunks <= GetParam().most_chunks; ++size.chunks) {
    for (size.stages = 1; size.stages <= 8; ++size.stages) {
      for (size.microbatches = 1; size.microbatches <= 32; ++size.microbatches) {
        const Schedule schedule = make_schedule(GetParam().kind, size);
        const CheckReport report = check(schedule);
        const std::string what = fmt::format("{} stages, {} microbatches, {} chunks", size.stages,
                                             size.microbatches, size.chunks);
        ASSERT_THAT(report.errors, IsEmpty()) << what;
        ASSERT_TRUE(report.passes_with_rendezvous_sends) << what;
        ASSERT_LE(std::ranges::max(report.peak_live), GetParam().peak(size)) << what;
        if (size.microbatches >= 2 * size.stages && GetParam().kind != ScheduleKind::kZbV) {
          for (std::int64_t stage = 0; stage < size.stages; ++stage) {
            ASSERT_EQ(report.peak_live[static_cast<std::size_t>(stage)],
                      live_bound(schedule, stage))
                << what;
          }
        }
      }
    }
  }
}

// Published peaks; of interleaved p + (p - 1) / v, and of zb-v p, in stages of v and 2 chunks.
INSTANTIATE_TEST_SUITE_P(
    Kinds, EverySchedule,
    ::testing::Values(
        Kind{ScheduleKind::kGpipe, 1, [](const ScheduleSize& size) { return size.microbatches; }},
        Kind{ScheduleKind::k1f1b, 1,
             [](const ScheduleSize& size) { return std::min(size.microbatches, size.stages); }},
        Kind{ScheduleKind::kInterleaved, 4,
             [](const ScheduleSize& size) {
               return std::min(size.microbatches * size.chunks,
                               size.stages * size.chunks + size.stages - 1);
             }},
        Kind{ScheduleKind::kZbH1, 1,
             [](const ScheduleSize& size) { return std::min(size.microbatches, size.stages); }},
        Kind{ScheduleKind::kZbH2, 1,
             [](const ScheduleSize& size) {
               return std::min(size.microbatches, 2 * size.stages - 1);
             }},
        Kind{ScheduleKind::kZbV, 2, [](const ScheduleSize& size) { return 2 * size.stages; }},
        Kind{ScheduleKind::kForwardOnly, 1, [](const ScheduleSize&) { return std::int64_t{1}; }}),
    [](const auto& instance) {
      std::string name(name_of(instance.param.kind));
      std::ranges::replace(name, '-', '_');
      return "kind_" + name;
    });

/// A schedule made unsound by one change.
struct Fault {
  std::string name;
  Schedule schedule;
  void (*change)(Schedule&);
  ::testing::Matcher<const std::vector<std::string>&> errors;
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

class UnsoundSchedule : public ::testing::TestWithParam<Fault> {};

TEST_P(UnsoundSchedule, IsReported) {
  Schedule schedule = GetParam().schedule;
  GetParam().change(schedule);
  EXPECT_THAT(check(schedule).errors, GetParam().errors);
}

Schedule gpipe(std::int64_t stages, std::int64_t microbatches) {
  return make_schedule(ScheduleKind::kGpipe, {stages, microbatches});
}

INSTANTIATE_TEST_SUITE_P(
    Faults, UnsoundSchedule,
    ::testing::Values(
        Fault{"missing_receive", make_schedule(ScheduleKind::k1f1b, {3, 4}),
              [](Schedule& s) { erase(s, 1, kReceiveActivation, 2); },
              ElementsAre("stage 1: forward of microbatch 2: needs a receive-activation before it",
                          "from stage 0 to stage 1: the activation of microbatch 2 is sent and "
                          "never received")},
        Fault{"missing_send", gpipe(2, 2), [](Schedule& s) { erase(s, 1, kSendGradient, 1); },
              ElementsAre("from stage 1 to stage 0: the gradient of microbatch 1 is received and "
                          "never sent")},
        Fault{"swapped_sends", gpipe(2, 3),
              [](Schedule& s) { move_before(s, 0, kSendActivation, 0, kForward, 2); },
              ElementsAre("from stage 0 to stage 1: the activation of microbatch 1 is sent where "
                          "the activation of microbatch 0 is received; messages must be received "
                          "in the order in which they are sent")},
        Fault{"duplicate_action", gpipe(2, 2), [](Schedule& s) { duplicate(s, 0); },
              Contains("stage 0: forward of microbatch 0: appears twice")},
        Fault{"duplicate_message", gpipe(2, 2), [](Schedule& s) { duplicate(s, 1); },
              ElementsAre("stage 0: send-activation of microbatch 0 to stage 1: appears twice",
                          "from stage 0 to stage 1: 3 messages are sent, 2 are received")},
        Fault{"deadlock", gpipe(2, 1),
              [](Schedule& s) { move_before(s, 0, kReceiveGradient, 0, kSendActivation, 0); },
              ElementsAre("deadlock: stage 0 waits at receive-gradient of microbatch 0 from stage "
                          "1, stage 1 waits at receive-activation of microbatch 0 from stage 0")},
        Fault{"missing_backward", make_schedule(ScheduleKind::k1f1b, {2, 3}),
              [](Schedule& s) { erase(s, 1, kBackwardWeight, 1); },
              ElementsAre("stage 1: backward-weight of microbatch 1: is missing",
                          "stage 1: forward of microbatch 2: holds activations of 2 microbatches, "
                          "the limit is 1")},
        Fault{"weight_gradients_out_of_order", gpipe(1, 3),
              [](Schedule& s) { move_before(s, 0, kBackwardWeight, 0, kBackwardInput, 2); },
              ElementsAre("stage 0: backward-weight of microbatch 0: follows that of microbatch 1; "
                          "weight gradients must ascend")},
        Fault{"backward_before_its_forward", gpipe(1, 2),
              [](Schedule& s) { move_before(s, 0, kBackwardInput, 1, kForward, 1); },
              ElementsAre("stage 0: backward-input of microbatch 1: needs a forward before it")},
        Fault{"weight_gradient_before_its_input_gradient", gpipe(1, 1),
              [](Schedule& s) { std::swap(s.stage_actions[0][1], s.stage_actions[0][2]); },
              ElementsAre(
                  "stage 0: backward-weight of microbatch 0: needs a backward-input before it")},
        Fault{
            "send_before_its_forward", gpipe(2, 1),
            [](Schedule& s) { move_before(s, 0, kSendActivation, 0, kForward, 0); },
            ElementsAre(
                "stage 0: send-activation of microbatch 0 to stage 1: needs a forward before it")},
        Fault{"wrong_peer", gpipe(3, 1),
              [](Schedule& s) { list_of(s, 0)[find(s, 0, kSendActivation, 0)].peer = 2; },
              Contains(
                  "stage 0: send-activation of microbatch 0 to stage 2: its peer must be stage 1")},
        Fault{"send_of_the_last_stage", make_schedule(ScheduleKind::kForwardOnly, {2, 1}),
              [](Schedule& s) { list_of(s, 1).push_back({.kind = kSendActivation, .peer = 0}); },
              Contains("stage 1: send-activation of microbatch 0 to stage 0: this chunk exchanges "
                       "no such message")},
        Fault{"early_reduce", gpipe(1, 1),
              [](Schedule& s) { move_before(s, 0, kReduce, 0, kBackwardWeight, 0); },
              ElementsAre("stage 0: backward-weight of microbatch 0: follows the reduce")},
        Fault{"missing_reduce", gpipe(1, 1), [](Schedule& s) { erase(s, 0, kReduce, 0); },
              ElementsAre("stage 0: reduce: is missing")},
        Fault{
            "microbatch_out_of_range", gpipe(2, 2),
            [](Schedule& s) { list_of(s, 0)[0].microbatch = 2; },
            ElementsAre("stage 0: forward of microbatch 2: there are 2 microbatches and 1 chunks")},
        Fault{"missing_list", gpipe(2, 2), [](Schedule& s) { s.stage_actions.pop_back(); },
              ElementsAre("1 lists of actions for 2 stages")},
        Fault{"gradients_in_a_forward_only_schedule", gpipe(1, 1),
              [](Schedule& s) { s.kind = ScheduleKind::kForwardOnly; },
              Contains("stage 0: backward-input of microbatch 0: does not belong in a schedule "
                       "of kind forward")},
        Fault{"too_many_live_activations", gpipe(2, 4),
              [](Schedule& s) { s.kind = ScheduleKind::k1f1b; },
              ElementsAre("stage 0: forward of microbatch 3: holds activations of 4 microbatches, "
                          "the limit is 2",
                          "stage 1: forward of microbatch 3: holds activations of 4 microbatches, "
                          "the limit is 1")},
        Fault{
            "chunks_of_one_stage_out_of_order", make_schedule(ScheduleKind::kForwardOnly, {1, 1}),
            [](Schedule& s) {
              s.chunks = 2;
              s.order = ChunkOrder::loop(1, 2);
              s.stage_actions = {{{.kind = kForward, .chunk = 1}, {.kind = kForward, .chunk = 0}}};
            },
            Contains("stage 0: forward of microbatch 0 (chunk 1): needs a forward before it")}),
    [](const auto& test) { return test.param.name; });

TEST(Checker, CountsLiveActivationsOfAnUnsoundSchedule) {
  Schedule schedule = gpipe(2, 4);
  schedule.kind = ScheduleKind::k1f1b;
  EXPECT_THAT(check(schedule).peak_live, ElementsAre(4, 4));
}

TEST(Checker, ReportsAScheduleThatNeedsBufferedSends) {
  // Stage 0 sends four activations before it receives; stage 1 sends two gradients in between. In
  // the end each waits in a second send to the other.
  Schedule schedule = compute_order(ScheduleKind::kGpipe, {2, 4});
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

TEST(Checker, RequireSoundThrowsTheFirstError) {
  Schedule schedule = gpipe(2, 2);
  EXPECT_NO_THROW(require_sound(schedule));
  std::swap(list_of(schedule, 0)[find(schedule, 0, kSendActivation, 0)],
            list_of(schedule, 0)[find(schedule, 0, kSendActivation, 1)]);
  try {
    require_sound(schedule);
    FAIL() << "an unsound schedule was accepted";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("unsound gpipe schedule: stage 0: send-activation of microbatch 1 to stage 1"));
  }
}

// Whether the simulator runs each compute action once.
bool runs_whole(const Schedule& schedule, const Schedule& original) {
  try {
    const StageCosts costs = equal_costs(schedule.stages, 1.0, 1.0, 1.0);
    return simulate(schedule, costs, Record::kTotals).busy_seconds ==
           simulate(original, costs, Record::kTotals).busy_seconds;
  } catch (const std::logic_error&) {
    return false;
  }
}

TEST(Checker, RefusesMutationsOrTheyAreHarmless) {
  std::mt19937_64 chance(7);
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(chance() % static_cast<std::uint64_t>(count));
  };
  constexpr int kMutations = 1000;
  int refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    constexpr ScheduleKind kKinds[] = {ScheduleKind::kGpipe, ScheduleKind::k1f1b,
                                       ScheduleKind::kZbH1,  ScheduleKind::kZbH2,
                                       ScheduleKind::kZbV,   ScheduleKind::kInterleaved};
    const ScheduleKind kind = kKinds[below(std::size(kKinds))];
    const bool chunks = kind == ScheduleKind::kZbV || kind == ScheduleKind::kInterleaved;
    const Schedule original = make_schedule(kind, {3, 5, chunks ? 2 : 1});
    Schedule schedule = original;
    std::vector<Action>& list = list_of(schedule, static_cast<std::int64_t>(below(3)));
    const std::size_t at = below(list.size());
    const std::size_t other = below(list.size());
    switch (below(4)) {
      case 0:
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1: {
        const Action copy = list[other];
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), copy);
        break;
      }
      case 2:
        std::swap(list[at], list[other]);
        break;
      default:
        list[at].microbatch = (list[at].microbatch + 1) % 5;
    }
    if (check(schedule).passed()) {
      EXPECT_TRUE(runs_whole(schedule, original)) << name_of(kind) << ", mutation " << i;
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, kMutations / 2);
}

}  // namespace
}  // namespace strata::pipeline::checker_test
