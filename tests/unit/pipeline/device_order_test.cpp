// Messages between GPUs that wait for each other: every schedule ends (docs/communication.md).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline::device_order_test {
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

/// Records what Executor enqueues on a stage's streams for a schedule. Each chunk may forward the
/// gradients that it receives.
class ScheduleRecorder {
 public:
  /// `memory`: the schedule whose slots the stage's chunks have.
  ScheduleRecorder(const Schedule& schedule, const Schedule& memory, std::int64_t stage,
                   const Rules& rules)
      : schedule_(schedule),
        stage_(stage),
        rules_(rules),
        chunks_(static_cast<std::size_t>(schedule.chunks)) {
    for (const StageChunk& position : schedule.order.chunks()) {
      if (position.stage == stage) {
        Chunk& chunk = chunks_[static_cast<std::size_t>(position.chunk)];
        chunk.slots = slots_for(memory, position);
        chunk.is_first = !upstream(schedule, position);
        chunk.is_last = !downstream(schedule, position);
        chunk.upstream = here(upstream(schedule, position));
        chunk.downstream = here(downstream(schedule, position));
      }
    }
  }

  StageQueue record() {
    const std::vector<Action>& actions = schedule_.stage_actions[static_cast<std::size_t>(stage_)];
    for (std::size_t position = 0; position < actions.size(); ++position) {
      post_receives(actions);
      EXPECT_TRUE(!is_receive(actions[position].kind) || next_receive_ > position)
          << text_of(actions[position]) << " of stage " << stage_ << " is not posted";
      perform(actions[position]);
    }
    return std::move(queue_);
  }

 private:
  struct Chunk {
    nn::StageSlots slots;
    bool is_first = false;
    bool is_last = false;
    /// The chunks before and after it, where they are on this stage.
    Chunk* upstream = nullptr;
    Chunk* downstream = nullptr;
    std::vector<std::int64_t> activation_sends;
    std::vector<std::int64_t> gradient_sends;
    std::int64_t forwards_done = 0;
    std::int64_t outputs_sent = 0;
    std::int64_t gradients_sent = 0;
    std::int64_t weights_done = 0;
  };

  [[nodiscard]] Chunk* here(const std::optional<StageChunk>& position) {
    return position && position->stage == stage_
               ? &chunks_[static_cast<std::size_t>(position->chunk)]
               : nullptr;
  }

  [[nodiscard]] static bool is_gradient(const Action& action) {
    return action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kReceiveGradient;
  }

  /// A route is a kind of messages to one chunk.
  [[nodiscard]] std::int64_t message(const Action& action) const {
    const std::int64_t receiver = schedule_.order.index_of(receiver_of(schedule_, stage_, action));
    return (2 * receiver + (is_gradient(action) ? 1 : 0)) * schedule_.microbatches +
           action.microbatch;
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
    Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
    if (is_send(action.kind)) {
      const std::int64_t number = message(action);
      begin(number);
      (is_gradient(action) ? chunk.gradient_sends : chunk.activation_sends).push_back(number);
      (is_gradient(action) ? chunk.gradients_sent : chunk.outputs_sent) = m + 1;
    } else if (is_receive(action.kind)) {
      if (rules_.receives == Receives::kWhenDue) {
        begin(message(action));
      }
      needed_.push_back(message(action));
    } else {
      if (action.kind == ActionKind::kForward) {
        wait_for_slot(chunk.activation_sends, m, chunk.slots.activations);
        if (chunk.upstream != nullptr) {
          wait_for_slot(chunk.activation_sends, m, chunk.slots.inputs);
        }
        chunk.forwards_done = m + 1;
      } else if (action.kind == ActionKind::kBackwardInput) {
        wait_for_slot(chunk.gradient_sends, m, chunk.slots.gradients);
        if (chunk.downstream != nullptr) {
          chunk.downstream->gradients_sent = m + 1;
        }
      } else if (action.kind == ActionKind::kBackwardWeight) {
        chunk.weights_done = m + 1;
      }
      compute();
    }
  }

  [[nodiscard]] std::int64_t inputs_done(const Chunk& chunk) const {
    if (schedule_.kind != ScheduleKind::kForwardOnly) {
      return chunk.weights_done;
    }
    if (chunk.downstream != nullptr) {
      return chunk.downstream->forwards_done;
    }
    return chunk.is_last ? chunk.forwards_done : chunk.outputs_sent;
  }

  /// A posted receive makes the compute stream wait for sends from its slot.
  void post_receives(const std::vector<Action>& actions) {
    for (; next_receive_ < actions.size(); ++next_receive_) {
      const Action& action = actions[next_receive_];
      const std::int64_t m = action.microbatch;
      Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
      if (action.kind == ActionKind::kReceiveActivation) {
        if (m - chunk.slots.inputs >= inputs_done(chunk)) {
          return;
        }
        wait_for_slot(chunk.activation_sends, m, chunk.slots.inputs);
      } else if (action.kind == ActionKind::kReceiveGradient) {
        const std::int64_t done = chunk.is_first
                                      ? chunk.weights_done
                                      : std::min(chunk.weights_done, chunk.gradients_sent);
        if (m - chunk.slots.gradients >= done) {
          return;
        }
        wait_for_slot(chunk.gradient_sends, m, chunk.slots.gradients);
      }
      if (is_receive(action.kind) && rules_.receives == Receives::kWhenPosted) {
        begin(message(action));
      }
    }
  }

  const Schedule& schedule_;
  std::int64_t stage_;
  Rules rules_;
  StageQueue queue_;
  std::vector<std::int64_t> needed_;
  std::vector<Chunk> chunks_;
  std::size_t next_receive_ = 0;
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

/// `memory`: the schedule whose slots the chunks have.
bool ends(const Schedule& schedule, const Schedule& memory, const Rules& rules) {
  std::vector<StageQueue> stages;
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    stages.push_back(ScheduleRecorder(schedule, memory, stage, rules).record());
  }
  const std::size_t routes = 2 * schedule.order.chunks().size();
  return Streams(std::move(stages), routes * static_cast<std::size_t>(schedule.microbatches))
      .run_to_end();
}

constexpr std::int64_t kMostStages = 6;
constexpr std::int64_t kMostMicrobatches = 12;

/// The schedule as it trains where the host waits.
Schedule for_host_waits(const Schedule& schedule) {
  return training_hang(schedule, device::DeviceKind::kCuda).empty() ? schedule
                                                                    : with_early_receives(schedule);
}

struct KindAndChunks {
  ScheduleKind kind;
  std::int64_t chunks = 1;
};

class DeviceOrder : public ::testing::TestWithParam<KindAndChunks> {
 protected:
  [[nodiscard]] static Schedule made(std::int64_t stages, std::int64_t microbatches,
                                     nn::BackwardOrder backward = nn::BackwardOrder::kSplit) {
    const auto& [kind, chunks] = GetParam();
    return make_schedule(kind, {stages, microbatches, chunks}, backward);
  }
  static void expect_end(const Schedule& schedule, const Schedule& memory) {
    for (const Waits waits : {Waits::kStreams, Waits::kHost}) {
      EXPECT_TRUE(ends(schedule, memory, {.waits = waits}))
          << schedule.stages << " stages, " << schedule.microbatches << " microbatches, waits "
          << (waits == Waits::kHost ? "of the host" : "of streams");
    }
  }
};

TEST_P(DeviceOrder, EveryScheduleCompletes) {
  for (std::int64_t stages = 1; stages <= kMostStages; ++stages) {
    for (std::int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
      for (const nn::BackwardOrder backward :
           {nn::BackwardOrder::kSplit, nn::BackwardOrder::kFused}) {
        const Schedule late = made(stages, microbatches, backward);
        EXPECT_EQ(ends(late, late, {.waits = Waits::kHost}),
                  training_hang(late, device::DeviceKind::kCuda).empty());
        const Schedule schedule = for_host_waits(late);
        EXPECT_TRUE(check(schedule).passed());
        expect_end(schedule, schedule);
        EXPECT_EQ(training_hang(schedule, device::DeviceKind::kCpu), "");
        EXPECT_EQ(training_hang(schedule, device::DeviceKind::kCuda), "");
      }
    }
  }
}

TEST_P(DeviceOrder, EveryEvaluationInATrainingsMemoryCompletes) {
  for (std::int64_t stages = 1; stages <= kMostStages; ++stages) {
    for (const std::int64_t trained : {1, 2, 5, 12}) {
      const Schedule memory = made(stages, trained);
      for (std::int64_t microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
        const Schedule schedule =
            insert_communication(forward_order(memory.order, stages, microbatches));
        EXPECT_TRUE(check(schedule).passed());
        expect_end(schedule, memory);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DeviceOrder,
    ::testing::Values(KindAndChunks{ScheduleKind::kGpipe}, KindAndChunks{ScheduleKind::k1f1b},
                      KindAndChunks{ScheduleKind::kZbH1}, KindAndChunks{ScheduleKind::kZbH2},
                      KindAndChunks{ScheduleKind::kInterleaved, 2},
                      KindAndChunks{ScheduleKind::kInterleaved, 3},
                      KindAndChunks{ScheduleKind::kInterleaved, 4},
                      KindAndChunks{ScheduleKind::kZbV, 2}),
    [](const auto& test) {
      std::string name = fmt::format("{}_{}", name_of(test.param.kind), test.param.chunks);
      std::ranges::replace(name, '-', '_');
      return "schedule_" + name;
    });

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
}  // namespace strata::pipeline::device_order_test
