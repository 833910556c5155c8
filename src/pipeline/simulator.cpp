#include "strata/pipeline/simulator.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::pipeline {
namespace {

double compute_seconds(const StageCosts& costs, std::int64_t stage, ActionKind kind) {
  const auto index = static_cast<std::size_t>(stage);
  switch (kind) {
    case ActionKind::kForward:
      return costs.forward_seconds[index];
    case ActionKind::kBackwardInput:
      return costs.backward_input_seconds[index];
    case ActionKind::kBackwardWeight:
      return costs.backward_weight_seconds[index];
    default:
      return 0.0;
  }
}

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
        send(action, here, begin + costs_.send_latency_seconds);
      } else if (is_receive(action.kind)) {
        const double arrives =
            arrival(action.kind == ActionKind::kReceiveGradient, here, action.microbatch);
        if (arrives == kNever) {
          return;
        }
        clock.now = std::max(begin, arrives);
      } else if (computes(action.kind)) {
        const double seconds = compute_seconds(costs_, stage, action.kind);
        clock.now += seconds;
        result_.busy_seconds[size(stage)] += seconds;
        clock.first_begin = std::min(clock.first_begin, begin);
        clock.last_end = clock.now;
      }
      if (record_ == Record::kActions) {
        result_.actions.push_back(
            {.stage = stage, .action = action, .begin_seconds = begin, .end_seconds = clock.now});
      }
    }
  }

  void send(const Action& action, const StageChunk& sender, double arrives) {
    const bool gradient = action.kind == ActionKind::kSendGradient;
    const auto receiver = gradient ? upstream(schedule_, sender) : downstream(schedule_, sender);
    require(receiver.has_value(), "stage {}: {} goes nowhere", sender.stage, text_of(action));
    arrival(gradient, *receiver, action.microbatch) = arrives;
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

StageCosts equal_costs(std::int64_t stages, double forward_seconds, double backward_input_seconds,
                       double backward_weight_seconds, double send_latency_seconds) {
  const auto count = static_cast<std::size_t>(stages);
  return {.forward_seconds = std::vector<double>(count, forward_seconds),
          .backward_input_seconds = std::vector<double>(count, backward_input_seconds),
          .backward_weight_seconds = std::vector<double>(count, backward_weight_seconds),
          .send_latency_seconds = send_latency_seconds};
}

double Simulation::longest_bubble_seconds() const {
  return bubble_seconds.empty() ? 0.0 : std::ranges::max(bubble_seconds);
}

Simulation simulate(const Schedule& schedule, const StageCosts& costs, Record record) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  require(costs.forward_seconds.size() == stages && costs.backward_input_seconds.size() == stages &&
              costs.backward_weight_seconds.size() == stages,
          "the costs are not for {} stages", schedule.stages);
  return Run(schedule, costs, record).finish();
}

}  // namespace strata::pipeline
