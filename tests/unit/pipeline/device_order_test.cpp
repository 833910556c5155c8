// Messages between GPUs that wait for each other: every schedule ends (docs/communication.md).
#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {
namespace {

/// Whether each direction between two stages has a stream of its own, or all of a stage share one.
enum class Lines { kOnePerRoute, kOnePerStage };
/// When a receive is enqueued: when the schedule reaches it, or when it is posted.
enum class Receives { kWhenDue, kWhenPosted };
/// Who waits for messages: the compute stream for those that it reads, or the host before every
/// action for all that it has begun, as where GPU memory is freed.
enum class Waits { kStreams, kHost };

struct Rules {
  Lines lines = Lines::kOnePerRoute;
  Receives receives = Receives::kWhenDue;
  Waits waits = Waits::kStreams;
};

/// One side of a message: it begins once `after` compute actions of its stage and the messages
/// before it on its line are done.
struct Half {
  std::int64_t message = 0;
  std::int64_t line = 0;
  std::int64_t after = 0;
};

struct StageQueue {
  /// For each compute action, the messages that must complete first.
  std::vector<std::vector<std::int64_t>> needs;
  std::vector<Half> halves;
};

/// Records what Executor enqueues on a stage's streams for a schedule.
class ScheduleRecorder {
 public:
  ScheduleRecorder(const Schedule& schedule, std::int64_t stage, const nn::StageSlots& slots,
                   const Rules& rules)
      : schedule_(schedule), stage_(stage), slots_(slots), rules_(rules) {}

  StageQueue record() {
    const std::vector<Action>& actions = schedule_.stage_actions[static_cast<std::size_t>(stage_)];
    for (const Action& action : actions) {
      post_receives(actions);
      perform(action);
    }
    return std::move(queue_);
  }

 private:
  [[nodiscard]] std::int64_t message(bool gradient, std::int64_t from, std::int64_t to,
                                     std::int64_t microbatch) const {
    return ((from * schedule_.stages + to) * 2 + (gradient ? 1 : 0)) * schedule_.microbatches +
           microbatch;
  }

  void begin(std::int64_t number) {
    const std::int64_t route = number / schedule_.microbatches;
    queue_.halves.push_back({.message = number,
                             .line = rules_.lines == Lines::kOnePerRoute ? route : 0,
                             .after = static_cast<std::int64_t>(queue_.needs.size())});
  }

  void compute() {
    if (rules_.waits == Waits::kHost) {
      for (const Half& half : queue_.halves) {
        needed_.push_back(half.message);
      }
    }
    queue_.needs.push_back(std::move(needed_));
    needed_.clear();
  }

  void wait_for_slot(const std::vector<std::int64_t>& sends, std::int64_t m, std::int64_t slots) {
    if (m >= slots && !sends.empty()) {
      needed_.push_back(sends.at(static_cast<std::size_t>(m - slots)));
    }
  }

  void perform(const Action& action) {
    const std::int64_t m = action.microbatch;
    const bool gradient =
        action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kReceiveGradient;
    if (is_send(action.kind)) {
      const std::int64_t number = message(gradient, stage_, action.peer, m);
      begin(number);
      (gradient ? gradient_sends_ : activation_sends_).push_back(number);
      outputs_sent_ = gradient ? outputs_sent_ : m + 1;
    } else if (is_receive(action.kind)) {
      const std::int64_t number = message(gradient, action.peer, stage_, m);
      if (rules_.receives == Receives::kWhenDue) {
        begin(number);
      }
      needed_.push_back(number);
    } else {
      if (action.kind == ActionKind::kForward) {
        wait_for_slot(activation_sends_, m, slots_.activations);
        forwards_done_ = m + 1;
      } else if (action.kind == ActionKind::kBackwardInput) {
        wait_for_slot(gradient_sends_, m, slots_.gradients);
      } else if (action.kind == ActionKind::kBackwardWeight) {
        weights_done_ = m + 1;
      }
      compute();
    }
  }

  [[nodiscard]] std::int64_t inputs_done() const {
    if (schedule_.kind != ScheduleKind::kForwardOnly) {
      return weights_done_;
    }
    return stage_ + 1 == schedule_.stages ? forwards_done_ : outputs_sent_;
  }

  /// A posted receive makes the compute stream wait for sends from its slot.
  void post_receives(const std::vector<Action>& actions) {
    for (; next_receive_ < actions.size(); ++next_receive_) {
      const Action& action = actions[next_receive_];
      const std::int64_t m = action.microbatch;
      if (action.kind == ActionKind::kReceiveActivation) {
        if (m - slots_.inputs >= inputs_done()) {
          return;
        }
        wait_for_slot(activation_sends_, m, slots_.inputs);
      } else if (action.kind == ActionKind::kReceiveGradient) {
        if (m - slots_.gradients >= weights_done_) {
          return;
        }
        wait_for_slot(gradient_sends_, m, slots_.gradients);
      }
      if (is_receive(action.kind) && rules_.receives == Receives::kWhenPosted) {
        begin(message(action.kind == ActionKind::kReceiveGradient, action.peer, stage_, m));
      }
    }
  }

  const Schedule& schedule_;
  std::int64_t stage_;
  nn::StageSlots slots_;
  Rules rules_;
  StageQueue queue_;
  std::vector<std::int64_t> needed_;
  std::vector<std::int64_t> activation_sends_;
  std::vector<std::int64_t> gradient_sends_;
  std::size_t next_receive_ = 0;
  std::int64_t forwards_done_ = 0;
  std::int64_t outputs_sent_ = 0;
  std::int64_t weights_done_ = 0;
};

/// Takes every step that can be taken until none can.
class Streams {
 public:
  explicit Streams(std::vector<StageQueue> stages, std::size_t messages)
      : stages_(std::move(stages)), work_done_(stages_.size(), 0), message_done_(messages, false) {}

  [[nodiscard]] bool run_to_end() {
    while (step()) {
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (work_done_[s] < stages_[s].needs.size()) {
        return false;
      }
    }
    return true;
  }

 private:
  bool step() {
    bool moved = false;
    std::vector<int> ends(message_done_.size(), 0);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      while (work_done_[s] < stages_[s].needs.size() && all_done(stages_[s].needs[work_done_[s]])) {
        ++work_done_[s];
        moved = true;
      }
      std::vector<std::int64_t> held_up;
      for (const Half& half : stages_[s].halves) {
        const auto number = static_cast<std::size_t>(half.message);
        if (message_done_[number]) {
          continue;
        }
        const bool first = std::find(held_up.begin(), held_up.end(), half.line) == held_up.end();
        ends[number] += first && half.after <= static_cast<std::int64_t>(work_done_[s]) ? 1 : 0;
        held_up.push_back(half.line);
      }
    }
    for (std::size_t number = 0; number < ends.size(); ++number) {
      if (ends[number] == 2) {
        message_done_[number] = true;
        moved = true;
      }
    }
    return moved;
  }

  [[nodiscard]] bool all_done(const std::vector<std::int64_t>& messages) const {
    return std::all_of(messages.begin(), messages.end(), [&](std::int64_t number) {
      return message_done_[static_cast<std::size_t>(number)];
    });
  }

  std::vector<StageQueue> stages_;
  std::vector<std::size_t> work_done_;
  std::vector<bool> message_done_;
};

/// `memory`: the schedule whose slots the stages have.
bool ends(const Schedule& schedule, const Schedule& memory, const Rules& rules) {
  std::vector<StageQueue> stages;
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    stages.push_back(
        ScheduleRecorder(schedule, stage, slots_for(memory, {.stage = stage}), rules).record());
  }
  const std::int64_t messages = schedule.stages * schedule.stages * 2 * schedule.microbatches;
  return Streams(std::move(stages), static_cast<std::size_t>(messages)).run_to_end();
}

constexpr std::int64_t kMostStages = 6;
constexpr std::int64_t kMostMicrobatches = 10;

/// The schedule as it trains where the host waits.
Schedule for_host_waits(const Schedule& schedule) {
  return training_hang(schedule, device::DeviceKind::kCuda).empty() ? schedule
                                                                    : with_early_receives(schedule);
}

class DeviceOrder : public ::testing::TestWithParam<ScheduleKind> {};

TEST_P(DeviceOrder, EveryScheduleCompletes) {
  for (std::int64_t stages = 1; stages <= kMostStages; ++stages) {
    for (std::int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
      const Schedule schedule = for_host_waits(make_schedule(GetParam(), {stages, microbatches}));
      for (const Waits waits : {Waits::kStreams, Waits::kHost}) {
        EXPECT_TRUE(ends(schedule, schedule, {.waits = waits}))
            << stages << " stages, " << microbatches << " microbatches, waits "
            << (waits == Waits::kHost ? "of the host" : "of streams");
      }
      EXPECT_EQ(training_hang(schedule, device::DeviceKind::kCpu), "");
      EXPECT_EQ(training_hang(schedule, device::DeviceKind::kCuda), "");
    }
  }
}

TEST_P(DeviceOrder, EveryEvaluationInATrainingsMemoryCompletes) {
  for (std::int64_t stages = 1; stages <= kMostStages; ++stages) {
    for (const std::int64_t trained : {1, 2, 5}) {
      const Schedule memory = make_schedule(GetParam(), {stages, trained});
      for (std::int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
        const Schedule schedule = make_schedule(ScheduleKind::kForwardOnly, {stages, microbatches});
        for (const Waits waits : {Waits::kStreams, Waits::kHost}) {
          EXPECT_TRUE(ends(schedule, memory, {.waits = waits}))
              << stages << " stages, " << microbatches << " microbatches";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceOrder,
                         ::testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1f1b,
                                           ScheduleKind::kZbH1, ScheduleKind::kZbH2),
                         [](const auto& test) {
                           std::string name(name_of(test.param));
                           std::ranges::replace(name, '-', '_');
                           return "schedule_" + name;
                         });

TEST(DeviceOrder, ChunksDoNotDeadlock) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::kInterleaved, std::int64_t{2}),
                                     {ScheduleKind::kInterleaved, 3},
                                     {ScheduleKind::kInterleaved, 4},
                                     {ScheduleKind::kZbV, 2}}) {
    for (std::int64_t stages = 2; stages <= kMostStages; ++stages) {
      for (std::int64_t microbatches = 1; microbatches <= 2 * kMostMicrobatches; ++microbatches) {
        const Schedule schedule =
            for_host_waits(make_schedule(kind, {stages, microbatches, chunks}));
        EXPECT_TRUE(check(schedule).passed());
        const Schedule evaluation =
            insert_communication(forward_order(schedule.order, stages, microbatches));
        EXPECT_TRUE(check(evaluation).passed());
        EXPECT_TRUE(check(evaluation).passes_with_rendezvous_sends);
        for (const Schedule& list : {schedule, evaluation}) {
          EXPECT_EQ(training_hang(list, device::DeviceKind::kCpu), "");
        }
        EXPECT_EQ(training_hang(schedule, device::DeviceKind::kCuda), "");
      }
    }
  }
}

// Why receives move ahead on GPUs.
TEST(DeviceOrder, LateReceivesDeadlockWhereTheHostWaits) {
  Schedule computed = compute_order(ScheduleKind::kZbH2, {4, 8});
  computed.kind = ScheduleKind::kFile;
  const Schedule schedule = insert_communication(computed);
  EXPECT_TRUE(ends(schedule, schedule, {}));
  EXPECT_FALSE(ends(schedule, schedule, {.waits = Waits::kHost}));
  EXPECT_EQ(training_hang(schedule, device::DeviceKind::kCpu), "");
  EXPECT_NE(training_hang(schedule, device::DeviceKind::kCuda), "");
  const Schedule early = with_early_receives(schedule);
  EXPECT_TRUE(ends(early, early, {.waits = Waits::kHost}));
  EXPECT_EQ(training_hang(early, device::DeviceKind::kCuda), "");
}

// Why each route has a stream of its own: a stage that sends an activation on while the next sends
// it a gradient would wait for it, and it for the stage.
TEST(DeviceOrder, OneStreamForAllRoutesOfAStageDeadlocks) {
  const Schedule schedule = make_schedule(ScheduleKind::k1f1b, {3, 4});
  EXPECT_FALSE(ends(schedule, schedule, {.lines = Lines::kOnePerStage}));
  EXPECT_TRUE(ends(schedule, schedule, {}));
}

// Why a receive is put there late: a host that waits for the whole GPU would wait for messages that
// answer to what it has yet to send.
TEST(DeviceOrder, ReceivesAheadDeadlockWhereTheHostWaits) {
  const Schedule schedule = make_schedule(ScheduleKind::k1f1b, {2, 4});
  EXPECT_TRUE(ends(schedule, schedule, {.receives = Receives::kWhenPosted}));
  EXPECT_FALSE(
      ends(schedule, schedule, {.receives = Receives::kWhenPosted, .waits = Waits::kHost}));
}

}  // namespace
}  // namespace strata::pipeline
