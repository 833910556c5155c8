#include "strata/pipeline/checker.hpp"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "strata/core/error.hpp"

#include "message_check.hpp"

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
  // The actions of one microbatch on one chunk that a stage has reached.
  struct Progress {
    bool received_activation = false;
    bool forward = false;
    bool sent_activation = false;
    bool received_gradient = false;
    bool backward_input = false;
    bool sent_gradient = false;
    bool backward_weight = false;
  };

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
  [[nodiscard]] bool trains() const { return trains_; }
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

  // Sets `done`; an error if it was set before.
  void once(std::int64_t stage, const Action& action, bool& done) {
    if (done) {
      error(stage, action, "appears twice");
    }
    done = true;
  }
  void needs(std::int64_t stage, const Action& action, bool done, ActionKind earlier) {
    if (!done) {
      error(stage, action, "needs a {} before it", name_of(earlier));
    }
  }

  // Progress of the action's microbatch on the chunk at `position`.
  Progress& progress_of(std::vector<Progress>& progress, const StageChunk& position,
                        const Action& action) const {
    return progress[static_cast<std::size_t>(position.chunk * schedule_.microbatches +
                                             action.microbatch)];
  }

  // Counts, order within the stage, and peers.
  void check_stage(std::int64_t stage) {
    std::vector<Progress> progress(
        static_cast<std::size_t>(schedule_.microbatches * schedule_.chunks));
    std::vector<std::int64_t> last_weight(static_cast<std::size_t>(schedule_.chunks), -1);
    bool reduced = false;
    for (const Action& action : actions_of(stage)) {
      const StageChunk position{.stage = stage, .chunk = action.chunk};
      const auto before = upstream(schedule_, position);
      const auto after = downstream(schedule_, position);
      Progress& seen = progress_of(progress, position, action);
      if (reduced) {
        error(stage, action, "follows the reduce");
      }
      if (!trains() && !is_sharding(action.kind) && action.kind != ActionKind::kForward &&
          action.kind != ActionKind::kSendActivation &&
          action.kind != ActionKind::kReceiveActivation) {
        error(stage, action, "does not belong in a schedule of kind {}", name_of(schedule_.kind));
      }
      switch (action.kind) {
        case ActionKind::kReceiveActivation:
          once(stage, action, seen.received_activation);
          check_peer(stage, action, before);
          break;
        case ActionKind::kForward:
          once(stage, action, seen.forward);
          if (remote(before, stage)) {
            needs(stage, action, seen.received_activation, ActionKind::kReceiveActivation);
          } else if (before) {
            needs(stage, action, progress_of(progress, *before, action).forward,
                  ActionKind::kForward);
          }
          break;
        case ActionKind::kSendActivation:
          once(stage, action, seen.sent_activation);
          needs(stage, action, seen.forward, ActionKind::kForward);
          check_peer(stage, action, after);
          break;
        case ActionKind::kReceiveGradient:
          once(stage, action, seen.received_gradient);
          check_peer(stage, action, after);
          break;
        case ActionKind::kBackwardInput:
          once(stage, action, seen.backward_input);
          needs(stage, action, seen.forward, ActionKind::kForward);
          if (remote(after, stage)) {
            needs(stage, action, seen.received_gradient, ActionKind::kReceiveGradient);
          } else if (after) {
            needs(stage, action, progress_of(progress, *after, action).backward_input,
                  ActionKind::kBackwardInput);
          }
          break;
        case ActionKind::kSendGradient:
          once(stage, action, seen.sent_gradient);
          needs(stage, action, seen.backward_input, ActionKind::kBackwardInput);
          check_peer(stage, action, before);
          break;
        case ActionKind::kBackwardWeight: {
          once(stage, action, seen.backward_weight);
          needs(stage, action, seen.backward_input, ActionKind::kBackwardInput);
          std::int64_t& last = last_weight[static_cast<std::size_t>(action.chunk)];
          if (action.microbatch < last && schedule_.kind == ScheduleKind::kFile) {
            report_.descending_weights.push_back({.stage = stage, .action = action});
          } else if (action.microbatch < last) {
            error(stage, action, "follows that of microbatch {}; weight gradients must ascend",
                  last);
          }
          last = action.microbatch;
          break;
        }
        case ActionKind::kReduce:
          reduced = true;
          break;
        case ActionKind::kUnshard:
        case ActionKind::kReshard:
        case ActionKind::kReduceGradient:
          break;
      }
    }
    check_complete(stage, progress);
    if (trains() && !reduced) {
      error(stage, {.kind = ActionKind::kReduce}, "is missing");
    }
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
        const Progress& seen =
            progress[static_cast<std::size_t>(chunk * schedule_.microbatches + microbatch)];
        const auto expect = [&](bool done, ActionKind kind) {
          if (!done) {
            error(stage, {.kind = kind, .microbatch = microbatch, .chunk = chunk}, "is missing");
          }
        };
        expect(seen.forward, ActionKind::kForward);
        if (trains()) {
          expect(seen.backward_input, ActionKind::kBackwardInput);
          expect(seen.backward_weight, ActionKind::kBackwardWeight);
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
        if (!trains() &&
            !remote(downstream(schedule_, {.stage = stage, .chunk = action.chunk}), stage)) {
          --live;
        }
      } else if (action.kind ==
                 (trains() ? ActionKind::kBackwardWeight : ActionKind::kSendActivation)) {
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
