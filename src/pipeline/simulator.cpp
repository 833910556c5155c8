#include "strata/pipeline/simulator.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "strata/core/error.hpp"

#include "index.hpp"
#include "player.hpp"

namespace strata::pipeline {
namespace {

/// The clocks of all stages.
class Run {
 public:
  Run(const Schedule& schedule, const StageCosts& costs, Record record)
      : schedule_(schedule), costs_(costs), record_(record), stages_(at(schedule.stages)) {
    arrivals_.resize(message_count(schedule));
    result_.busy_seconds.assign(at(schedule.stages), 0.0);
    result_.exposed_seconds.assign(at(schedule.stages), 0.0);
  }

  /// Pre: the action runs next on its stage; a receive's message has been sent.
  void add(std::int64_t stage, const Action& action) {
    StageClock& clock = stages_[at(stage)];
    double& exposed = result_.exposed_seconds[at(stage)];
    const double begin = clock.now;
    if (is_send(action.kind)) {
      arrival(stage, action) = begin + message_seconds(stage, action);
    } else if (is_receive(action.kind)) {
      clock.now = std::max(begin, arrival(stage, action));
      exposed += std::min(clock.now - begin, message_seconds(stage, action));
    } else if (action.kind == ActionKind::kReduce && !costs_.reduce_seconds.empty()) {
      clock.now += costs_.reduce_seconds[at(stage)];
      exposed += costs_.reduce_seconds[at(stage)];
    } else {
      const double seconds =
          costs_.times_of({.stage = stage, .chunk = action.chunk}).of(action.kind);
      clock.now += seconds;
      if (is_sharding(action.kind)) {
        exposed += seconds;
      } else if (action.kind != ActionKind::kReduce) {
        result_.busy_seconds[at(stage)] += seconds;
        clock.first_begin = std::min(clock.first_begin, begin);
        clock.last_end = clock.now;
      }
    }
    if (record_ == Record::kActions) {
      result_.actions.push_back(
          {.stage = stage, .action = action, .begin_seconds = begin, .end_seconds = clock.now});
    }
  }

  Simulation finish() {
    for (const StageClock& clock : stages_) {
      result_.makespan_seconds = std::max(result_.makespan_seconds, clock.now);
    }
    result_.step_seconds = result_.makespan_seconds;
    if (!costs_.optimizer_seconds.empty()) {
      result_.step_seconds += std::ranges::max(costs_.optimizer_seconds);
    }
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
    std::ranges::stable_sort(result_.actions, {}, [](const TimedAction& timed) {
      return std::pair(timed.begin_seconds, timed.stage);
    });
    return std::move(result_);
  }

 private:
  struct StageClock {
    double now = 0.0;
    /// Of its first compute action, and the end of its last.
    double first_begin = std::numeric_limits<double>::infinity();
    double last_end = 0.0;
  };

  [[nodiscard]] double& arrival(std::int64_t stage, const Action& action) {
    return arrivals_[at(message_number(schedule_, stage, action))];
  }
  [[nodiscard]] double message_seconds(std::int64_t stage, const Action& action) const {
    const LinkTimes& link = costs_.link(stage, action.peer);
    return is_gradient(action.kind) ? link.gradient_seconds : link.activation_seconds;
  }

  const Schedule& schedule_;
  const StageCosts& costs_;
  Record record_;
  std::vector<StageClock> stages_;
  std::vector<double> arrivals_;  ///< by message_number()
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
  Run run(schedule, costs, record);
  const std::vector<std::size_t> ran =
      play(schedule, Sends::kNeverBlock, {},
           [&](std::int64_t stage, const Action& action) { run.add(stage, action); });
  for (std::size_t stage = 0; stage < stages; ++stage) {
    require(ran[stage] == schedule.stage_actions[stage].size(),
            "the schedule deadlocks at action {} of stage {}; check() reports why", ran[stage],
            stage);
  }
  return run.finish();
}

}  // namespace strata::pipeline
