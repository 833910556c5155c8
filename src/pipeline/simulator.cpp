#include "strata/pipeline/simulator.hpp"

#include <algorithm>
#include <deque>
#include <map>
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

}  // namespace

StageCosts equal_costs(std::int64_t stages, double forward_seconds, double backward_input_seconds,
                       double backward_weight_seconds, double send_latency_seconds) {
  const auto count = static_cast<std::size_t>(stages);
  return {.forward_seconds = std::vector<double>(count, forward_seconds),
          .backward_input_seconds = std::vector<double>(count, backward_input_seconds),
          .backward_weight_seconds = std::vector<double>(count, backward_weight_seconds),
          .send_latency_seconds = send_latency_seconds};
}

Simulation simulate(const Schedule& schedule, const StageCosts& costs) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  require(costs.forward_seconds.size() == stages && costs.backward_input_seconds.size() == stages &&
              costs.backward_weight_seconds.size() == stages,
          "the costs are not for {} stages", schedule.stages);
  Simulation result;
  result.busy_seconds.assign(stages, 0.0);
  std::vector<std::size_t> position(stages, 0);
  std::vector<double> now(stages, 0.0);
  // Arrival times of messages in flight, by sender and receiver, in the order of sending.
  std::map<std::pair<std::int64_t, std::int64_t>, std::deque<double>> arrivals;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
      const auto index = static_cast<std::size_t>(stage);
      const std::vector<Action>& actions = schedule.stage_actions[index];
      for (; position[index] < actions.size(); ++position[index], moved = true) {
        const Action& action = actions[position[index]];
        const double begin = now[index];
        if (is_send(action.kind)) {
          arrivals[{stage, action.peer}].push_back(begin + costs.send_latency_seconds);
        } else if (is_receive(action.kind)) {
          std::deque<double>& queue = arrivals[{action.peer, stage}];
          if (queue.empty()) {
            break;
          }
          now[index] = std::max(begin, queue.front());
          queue.pop_front();
        } else {
          const double seconds = compute_seconds(costs, stage, action.kind);
          now[index] += seconds;
          result.busy_seconds[index] += seconds;
        }
        result.actions.push_back(
            {.stage = stage, .action = action, .begin_seconds = begin, .end_seconds = now[index]});
      }
    }
  }
  for (std::size_t stage = 0; stage < stages; ++stage) {
    require(position[stage] == schedule.stage_actions[stage].size(),
            "the schedule deadlocks at action {} of stage {}; check() reports why", position[stage],
            stage);
    result.makespan_seconds = std::max(result.makespan_seconds, now[stage]);
  }
  double idle = 0.0;
  for (const double busy : result.busy_seconds) {
    result.idle_seconds.push_back(result.makespan_seconds - busy);
    idle += result.idle_seconds.back();
  }
  const double total = result.makespan_seconds * static_cast<double>(schedule.stages);
  result.bubble_fraction = total > 0.0 ? idle / total : 0.0;
  std::stable_sort(
      result.actions.begin(), result.actions.end(), [](const TimedAction& a, const TimedAction& b) {
        return std::pair(a.begin_seconds, a.stage) < std::pair(b.begin_seconds, b.stage);
      });
  return result;
}

}  // namespace strata::pipeline
