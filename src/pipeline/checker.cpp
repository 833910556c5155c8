#include "strata/pipeline/checker.hpp"

#include <algorithm>
#include <bitset>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "strata/core/error.hpp"

#include "player.hpp"

namespace strata::pipeline {
namespace {

/// A file may hold forward passes only.
bool has_backward(const Schedule& schedule) {
  return std::ranges::any_of(schedule.stage_actions, [](const std::vector<Action>& list) {
    return std::ranges::any_of(list, [](const Action& action) {
      return action.kind == ActionKind::kBackwardInput ||
             action.kind == ActionKind::kBackwardWeight;
    });
  });
}

/// Messages that arrive in the order in which they are sent: those of one kind from one stage to
/// one chunk of another.
struct Channel {
  std::int64_t from = 0;
  std::int64_t to = 0;
  bool gradient = false;
  std::int64_t chunk = 0;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const Channel&, const Channel&) = default;
};

/// The actions of a channel, in order.
struct Traffic {
  std::vector<const Action*> sent;
  std::vector<const Action*> received;
};

std::map<Channel, Traffic> traffic_of(const Schedule& schedule) {
  std::map<Channel, Traffic> traffic;
  std::vector<Traffic*> known(2 * schedule.order.chunks().size());  // searched only once
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    for (const Action& action : schedule.stage_actions[static_cast<std::size_t>(stage)]) {
      const bool sends = is_send(action.kind);
      if (!sends && !is_receive(action.kind)) {
        continue;
      }
      const std::int64_t number = message_number(schedule, stage, action);
      Traffic* unknown = nullptr;
      Traffic*& channel =
          number < 0 ? unknown : known[static_cast<std::size_t>(number / schedule.microbatches)];
      if (channel == nullptr) {
        channel = &traffic[{.from = sends ? stage : action.peer,
                            .to = sends ? action.peer : stage,
                            .gradient = is_gradient(action.kind),
                            .chunk = receiver_of(schedule, stage, action).chunk}];
      }
      (sends ? channel->sent : channel->received).push_back(&action);
    }
  }
  return traffic;
}

std::int64_t microbatch_of(const Action* action) {
  return action->microbatch;
}

std::string text_of(const Channel& channel, const Action* message) {
  return fmt::format("the {} of microbatch {}{}", channel.gradient ? "gradient" : "activation",
                     message->microbatch,
                     channel.chunk > 0 ? fmt::format(" for chunk {}", channel.chunk) : "");
}

/// Mismatches between what each pair of stages sends and receives, in order; each at the first
/// message that does not match.
std::vector<PlacedError> message_errors(const Schedule& schedule) {
  std::vector<PlacedError> errors;
  for (const auto& [channel, traffic] : traffic_of(schedule)) {
    const auto& [sent, received] = traffic;
    if (std::ranges::equal(sent, received, {}, microbatch_of, microbatch_of)) {
      continue;
    }
    const std::string where = fmt::format("from stage {} to stage {}", channel.from, channel.to);
    const auto add = [&, &channel = channel](bool of_sender, const Action* action,
                                             const std::string& what) {
      errors.push_back(
          {.place = {.stage = of_sender ? channel.from : channel.to, .action = *action},
           .text = fmt::format("{}: {}", where, what)});
    };
    const std::size_t errors_before = errors.size();
    for (const bool of_sender : {true, false}) {
      std::vector<const Action*> others = of_sender ? received : sent;
      std::ranges::sort(others, {}, microbatch_of);
      for (const Action* const action : of_sender ? sent : received) {
        if (std::ssize(errors) < kMostErrors &&
            !std::ranges::binary_search(others, action->microbatch, {}, microbatch_of)) {
          add(of_sender, action,
              fmt::format("{} is {}", text_of(channel, action),
                          of_sender ? "sent and never received" : "received and never sent"));
        }
      }
    }
    if (errors.size() > errors_before) {
      continue;
    }
    const auto [first_sent, first_received] =
        std::ranges::mismatch(sent, received, {}, microbatch_of, microbatch_of);
    const bool more_sent = sent.size() > received.size();
    if (sent.size() != received.size()) {
      add(more_sent, more_sent ? *first_sent : *first_received,
          fmt::format("{} messages are sent, {} are received", sent.size(), received.size()));
    } else {
      add(true, *first_sent,
          fmt::format("{} is sent where {} is received; messages must be received in the order in "
                      "which they are sent",
                      text_of(channel, *first_sent), text_of(channel, *first_received)));
    }
  }
  return errors;
}

class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule),
        trains_(schedule.kind != ScheduleKind::kForwardOnly &&
                (schedule.kind != ScheduleKind::kFile || has_backward(schedule))) {}

  CheckReport run() {
    if (!shape_holds()) {
      return std::move(report_);
    }
    for (std::int64_t stage = 0; stage < schedule_.stages; ++stage) {
      check_stage(stage);
      check_live(stage);
    }
    for (PlacedError& wrong : message_errors(schedule_)) {
      add(std::move(wrong));
    }
    // Missing or misplaced messages would only be reported a second time, as a hang.
    if (report_.errors.empty()) {
      if (std::optional<PlacedError> hang = hang_of(schedule_, Sends::kNeverBlock)) {
        add(std::move(*hang));
      }
      report_.passes_with_rendezvous_sends = !hang_of(schedule_, Sends::kRendezvous);
    }
    return std::move(report_);
  }

 private:
  /// The kinds of actions of one microbatch on one chunk that a stage has reached.
  using Progress = std::bitset<static_cast<std::size_t>(ActionKind::kReduce)>;

  static std::size_t at(ActionKind kind) { return static_cast<std::size_t>(kind); }

  void add(PlacedError wrong) {
    report_.places.push_back(wrong.place);
    report_.errors.push_back(std::move(wrong.text));
  }

  template <typename... Args>
  void error(std::int64_t stage, const Action& action, fmt::format_string<Args...> format,
             Args&&... args) {
    if (std::ssize(report_.errors) >= kMostErrors) {
      return;
    }
    add({.place = {.stage = stage, .action = action},
         .text = fmt::format("stage {}: {}: {}", stage, text_of(action),
                             fmt::format(format, std::forward<Args>(args)...))});
  }

  [[nodiscard]] const std::vector<Action>& actions_of(std::int64_t stage) const {
    return schedule_.stage_actions[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] static bool remote(const std::optional<StageChunk>& neighbour, std::int64_t stage) {
    return neighbour && neighbour->stage != stage;
  }

  bool shape_holds() {
    if (schedule_.stages < 1 || schedule_.microbatches < 1 || schedule_.chunks < 1) {
      add({.place = {},
           .text = fmt::format(
               "it has {} stages, {} microbatches and {} chunks; each must be at least 1",
               schedule_.stages, schedule_.microbatches, schedule_.chunks)});
    } else if (static_cast<std::int64_t>(schedule_.stage_actions.size()) != schedule_.stages) {
      add({.place = {},
           .text = fmt::format("{} lists of actions for {} stages", schedule_.stage_actions.size(),
                               schedule_.stages)});
    } else {
      for (std::int64_t stage = 0; stage < schedule_.stages; ++stage) {
        for (const Action& action : actions_of(stage)) {
          if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches ||
              schedule_.order.index_of({.stage = stage, .chunk = action.chunk}) < 0) {
            error(stage, action, "there are {} microbatches and {} chunks", schedule_.microbatches,
                  schedule_.chunks);
          }
        }
      }
    }
    return report_.errors.empty();
  }

  void needs(std::int64_t stage, const Action& action, const Progress& seen, ActionKind earlier) {
    if (!seen[at(earlier)]) {
      error(stage, action, "needs a {} before it", name_of(earlier));
    }
  }

  /// What an action reads: the message of the neighbour, or the same action of one on this stage.
  void needs_input(std::int64_t stage, const Action& action,
                   const std::optional<StageChunk>& neighbour, ActionKind receive,
                   const std::vector<Progress>& progress) {
    if (neighbour) {
      const bool received = neighbour->stage != stage;
      needs(stage, action,
            progress[index_of(received ? action.chunk : neighbour->chunk, action.microbatch)],
            received ? receive : action.kind);
    }
  }

  [[nodiscard]] std::size_t index_of(std::int64_t chunk, std::int64_t microbatch) const {
    return static_cast<std::size_t>(chunk * schedule_.microbatches + microbatch);
  }

  /// Counts, order within the stage, and peers.
  void check_stage(std::int64_t stage) {
    using enum ActionKind;
    std::vector<Progress> progress(index_of(schedule_.chunks, 0));
    std::vector<std::int64_t> last_weight(static_cast<std::size_t>(schedule_.chunks), -1);
    bool reduced = false;
    for (const Action& action : actions_of(stage)) {
      const ActionKind kind = action.kind;
      const StageChunk position{.stage = stage, .chunk = action.chunk};
      const auto before = upstream(schedule_, position);
      const auto after = downstream(schedule_, position);
      if (reduced) {
        error(stage, action, "follows the reduce");
      }
      if (!trains_ && !is_sharding(kind) && kind != kForward && kind != kSendActivation &&
          kind != kReceiveActivation) {
        error(stage, action, "does not belong in a schedule of kind {}", name_of(schedule_.kind));
      }
      reduced = reduced || kind == kReduce;
      if (kind >= kReduce) {
        continue;
      }
      Progress& seen = progress[index_of(action.chunk, action.microbatch)];
      if (seen[at(kind)]) {
        error(stage, action, "appears twice");
      }
      seen.set(at(kind));
      if (kind == kSendActivation || kind == kBackwardInput) {
        needs(stage, action, seen, kForward);
      } else if (kind == kSendGradient || kind == kBackwardWeight) {
        needs(stage, action, seen, kBackwardInput);
      }
      if (kind == kForward) {
        needs_input(stage, action, before, kReceiveActivation, progress);
      } else if (kind == kBackwardInput) {
        needs_input(stage, action, after, kReceiveGradient, progress);
      } else if (kind == kBackwardWeight) {
        check_ascends(stage, action, last_weight[static_cast<std::size_t>(action.chunk)]);
      } else {
        check_peer(stage, action,
                   kind == kReceiveActivation || kind == kSendGradient ? before : after);
      }
    }
    check_complete(stage, progress);
    if (trains_ && !reduced) {
      error(stage, {.kind = kReduce}, "is missing");
    }
  }

  void check_ascends(std::int64_t stage, const Action& action, std::int64_t& last) {
    if (action.microbatch < last && schedule_.kind == ScheduleKind::kFile) {
      report_.descending_weights.push_back({.stage = stage, .action = action});
    } else if (action.microbatch < last) {
      error(stage, action, "follows that of microbatch {}; weight gradients must ascend", last);
    }
    last = action.microbatch;
  }

  void check_peer(std::int64_t stage, const Action& action,
                  const std::optional<StageChunk>& expected) {
    if (!remote(expected, stage)) {
      error(stage, action, "this chunk exchanges no such message");
    } else if (action.peer != expected->stage) {
      error(stage, action, "its peer must be stage {}", expected->stage);
    }
  }

  void check_complete(std::int64_t stage, const std::vector<Progress>& progress) {
    for (std::int64_t chunk = 0; chunk < schedule_.chunks; ++chunk) {
      if (schedule_.order.index_of({.stage = stage, .chunk = chunk}) < 0) {
        continue;
      }
      for (std::int64_t microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        for (const ActionKind kind :
             {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
          if ((kind == ActionKind::kForward || trains_) &&
              !progress[index_of(chunk, microbatch)][at(kind)]) {
            error(stage, {.kind = kind, .microbatch = microbatch, .chunk = chunk}, "is missing");
          }
        }
      }
    }
  }

  void check_live(std::int64_t stage) {
    std::int64_t live = 0;
    std::int64_t peak = 0;
    Action peak_action;
    for (const Action& action : actions_of(stage)) {
      if (action.kind == ActionKind::kForward) {
        ++live;
        if (live > peak) {
          peak = live;
          peak_action = action;
        }
        if (!trains_ &&
            !remote(downstream(schedule_, {.stage = stage, .chunk = action.chunk}), stage)) {
          --live;
        }
      } else if (action.kind ==
                 (trains_ ? ActionKind::kBackwardWeight : ActionKind::kSendActivation)) {
        --live;
      }
    }
    report_.peak_live.push_back(peak);
    const std::int64_t bound = live_bound(schedule_, stage);
    if (peak > bound) {
      error(stage, peak_action, "holds activations of {} microbatches, the limit is {}", peak,
            bound);
    }
  }

  const Schedule& schedule_;
  bool trains_;
  CheckReport report_;
};

}  // namespace

std::int64_t live_bound(const Schedule& schedule, std::int64_t stage) {
  const std::int64_t from_end = schedule.stages - stage;
  const std::int64_t all = schedule.microbatches * schedule.chunks;
  switch (schedule.kind) {
    case ScheduleKind::kGpipe:
      return all;
    case ScheduleKind::k1f1b:
      return std::min(from_end, all);
    case ScheduleKind::kInterleaved:
      return std::min(2 * from_end - 1 + (schedule.chunks - 1) * schedule.stages, all);
    case ScheduleKind::kZbH1:
      return std::min(schedule.stages, all);
    case ScheduleKind::kZbH2:
      return std::min(2 * schedule.stages - 1, all);
    case ScheduleKind::kZbV:
      return std::min(2 * schedule.stages, all);
    case ScheduleKind::kForwardOnly:
      return 1;
    case ScheduleKind::kFile:
      return all;
  }
  return 0;
}

CheckReport check(const Schedule& schedule) {
  return Checker(schedule).run();
}

void require_sound(const Schedule& schedule) {
  const CheckReport report = check(schedule);
  require(report.passed(), "unsound {} schedule: {}", name_of(schedule.kind),
          report.passed() ? "" : report.errors.front());
}

}  // namespace strata::pipeline
