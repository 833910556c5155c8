#include "strata/pipeline/simulator.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::pipeline {
namespace {

bool computes(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}

constexpr double kNever = std::numeric_limits<double>::infinity();

/// One run of the stages' lists.
class Run {
 public:
  Run(const Schedule& schedule, const StageCosts& costs, Record record)
      : schedule_(schedule), costs_(costs), record_(record), stages_(size(schedule.stages)) {
    const std::size_t messages = size(schedule.stages * schedule.chunks * schedule.microbatches);
    activations_.assign(messages, kNever);
    gradients_.assign(messages, kNever);
    result_.busy_seconds.assign(size(schedule.stages), 0.0);
    result_.exposed_seconds.assign(size(schedule.stages), 0.0);
  }

  Simulation finish() {
    for (std::int64_t stage = schedule_.stages - 1; stage >= 0; --stage) {
      ready_.push_back(stage);
    }
    while (!ready_.empty()) {
      const std::int64_t stage = ready_.back();
      ready_.pop_back();
      advance(stage);
    }
    for (std::int64_t stage = 0; stage < schedule_.stages; ++stage) {
      const StageClock& clock = stages_[size(stage)];
      require(clock.position == actions_of(stage).size(),
              "the schedule deadlocks at action {} of stage {}; check() reports why",
              clock.position, stage);
      result_.makespan_seconds = std::max(result_.makespan_seconds, clock.now);
    }
    result_.step_seconds = result_.makespan_seconds;
    if (!costs_.optimizer_seconds.empty()) {
      result_.step_seconds += std::ranges::max(costs_.optimizer_seconds);
    }
    add_up();
    std::ranges::stable_sort(result_.actions, {}, [](const TimedAction& timed) {
      return std::pair(timed.begin_seconds, timed.stage);
    });
    return std::move(result_);
  }

 private:
  struct StageClock {
    std::size_t position = 0;
    double now = 0.0;
    /// Of its first compute action, and the end of its last.
    double first_begin = kNever;
    double last_end = 0.0;
  };

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  [[nodiscard]] const std::vector<Action>& actions_of(std::int64_t stage) const {
    return schedule_.stage_actions[size(stage)];
  }

  /// When a message arrives at the chunk that receives it.
  [[nodiscard]] double& arrival(bool gradient, const StageChunk& receiver,
                                std::int64_t microbatch) {
    const std::int64_t chunk = receiver.stage * schedule_.chunks + receiver.chunk;
    return (gradient ? gradients_
                     : activations_)[size(chunk * schedule_.microbatches + microbatch)];
  }

  /// Runs a stage's list up to a receive whose message has not been sent.
  void advance(std::int64_t stage) {
    StageClock& clock = stages_[size(stage)];
    const std::vector<Action>& actions = actions_of(stage);
    for (; clock.position < actions.size(); ++clock.position) {
      const Action& action = actions[clock.position];
      const double begin = clock.now;
      const StageChunk here{.stage = stage, .chunk = action.chunk};
      if (is_send(action.kind)) {
        send(action, here, begin);
      } else if (is_receive(action.kind)) {
        const double arrives =
            arrival(action.kind == ActionKind::kReceiveGradient, here, action.microbatch);
        if (arrives == kNever) {
          return;
        }
        clock.now = std::max(begin, arrives);
        result_.exposed_seconds[size(stage)] +=
            std::min(clock.now - begin, message_seconds(stage, action));
      } else if (action.kind == ActionKind::kReduce && !costs_.reduce_seconds.empty()) {
        clock.now += costs_.reduce_seconds[size(stage)];
        result_.exposed_seconds[size(stage)] += costs_.reduce_seconds[size(stage)];
      } else if (computes(action.kind)) {
        const double seconds = costs_.times_of(here).of(action.kind);
        clock.now += seconds;
        result_.busy_seconds[size(stage)] += seconds;
        clock.first_begin = std::min(clock.first_begin, begin);
        clock.last_end = clock.now;
      } else if (is_sharding(action.kind)) {
        const double seconds = costs_.times_of(here).of(action.kind);
        clock.now += seconds;
        result_.exposed_seconds[size(stage)] += seconds;
      }
      if (record_ == Record::kActions) {
        result_.actions.push_back(
            {.stage = stage, .action = action, .begin_seconds = begin, .end_seconds = clock.now});
      }
    }
  }

  [[nodiscard]] double message_seconds(std::int64_t stage, const Action& action) const {
    const LinkTimes& link = costs_.link(stage, action.peer);
    const bool gradient =
        action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kReceiveGradient;
    return gradient ? link.gradient_seconds : link.activation_seconds;
  }

  void send(const Action& action, const StageChunk& sender, double begin) {
    const bool gradient = action.kind == ActionKind::kSendGradient;
    const auto receiver = gradient ? upstream(schedule_, sender) : downstream(schedule_, sender);
    if (!receiver) {
      require(false, "stage {}: {} goes nowhere", sender.stage, text_of(action));
    }
    arrival(gradient, *receiver, action.microbatch) = begin + message_seconds(sender.stage, action);
    const StageClock& clock = stages_[size(receiver->stage)];
    const std::vector<Action>& actions = actions_of(receiver->stage);
    if (clock.position < actions.size() && is_receive(actions[clock.position].kind)) {
      ready_.push_back(receiver->stage);
    }
  }

  void add_up() {
    double idle = 0.0;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const double busy = result_.busy_seconds[stage];
      const StageClock& clock = stages_[stage];
      result_.idle_seconds.push_back(result_.makespan_seconds - busy);
      result_.bubble_seconds.push_back(busy > 0.0 ? clock.last_end - clock.first_begin - busy
                                                  : 0.0);
      idle += result_.idle_seconds.back();
    }
    const double total = result_.makespan_seconds * static_cast<double>(schedule_.stages);
    result_.bubble_fraction = total > 0.0 ? idle / total : 0.0;
  }

  const Schedule& schedule_;
  const StageCosts& costs_;
  Record record_;
  std::vector<StageClock> stages_;
  /// Stages that may go on.
  std::vector<std::int64_t> ready_;
  std::vector<double> activations_;
  std::vector<double> gradients_;
  Simulation result_;
};

}  // namespace

double ChunkTimes::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::kForward:
      return forward_seconds;
    case ActionKind::kBackwardInput:
      return backward_input_seconds;
    case ActionKind::kBackwardWeight:
      return backward_weight_seconds;
    case ActionKind::kUnshard:
      return unshard_seconds;
    case ActionKind::kReshard:
      return reshard_seconds;
    case ActionKind::kReduceGradient:
      return reduce_gradient_seconds;
    default:
      return 0.0;
  }
}

const ChunkTimes& StageCosts::times_of(const StageChunk& position) const {
  const std::vector<ChunkTimes>& own = times[static_cast<std::size_t>(position.stage)];
  return own.size() == 1 ? own.front() : own[static_cast<std::size_t>(position.chunk)];
}

const LinkTimes& StageCosts::link(std::int64_t stage, std::int64_t peer) const {
  const std::int64_t first = std::min(stage, peer);
  return std::max(stage, peer) == first + 1 && links.size() > 1
             ? links[static_cast<std::size_t>(first)]
             : links.back();
}

StageCosts equal_costs(std::int64_t stages, double forward_seconds, double backward_input_seconds,
                       double backward_weight_seconds, double send_latency_seconds) {
  const ChunkTimes times{.forward_seconds = forward_seconds,
                         .backward_input_seconds = backward_input_seconds,
                         .backward_weight_seconds = backward_weight_seconds};
  return {.times = std::vector(static_cast<std::size_t>(stages), std::vector{times}),
          .links = {{.activation_seconds = send_latency_seconds,
                     .gradient_seconds = send_latency_seconds}}};
}

double Simulation::longest_bubble_seconds() const {
  return bubble_seconds.empty() ? 0.0 : std::ranges::max(bubble_seconds);
}

Simulation simulate(const Schedule& schedule, const StageCosts& costs, Record record) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  const auto of_all = [&](const std::vector<double>& seconds) {
    return seconds.empty() || seconds.size() == stages;
  };
  require(costs.times.size() == stages &&
              std::ranges::all_of(costs.times,
                                  [&](const std::vector<ChunkTimes>& own) {
                                    return own.size() == 1 || std::ssize(own) == schedule.chunks;
                                  }) &&
              (costs.links.size() == 1 || costs.links.size() == stages) &&
              of_all(costs.reduce_seconds) && of_all(costs.optimizer_seconds),
          "the costs are not for {} stages of {} chunks", schedule.stages, schedule.chunks);
  return Run(schedule, costs, record).finish();
}

}  // namespace strata::pipeline
