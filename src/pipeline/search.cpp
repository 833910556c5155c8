#include "strata/pipeline/search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/pipeline/checker.hpp"

#include "index.hpp"
#include "list_scheduler.hpp"

namespace strata::pipeline {
namespace {

Schedule shape_of(const ScheduleSize& size) {
  return {.kind = ScheduleKind::kFile,
          .stages = size.stages,
          .microbatches = size.microbatches,
          .chunks = size.chunks,
          .order = ChunkOrder::v(size.stages, size.chunks),
          .stage_actions = {}};
}

/// What surrounds a stage's own work.
struct Surroundings {
  double before_first_forward = 0.0;
  double before_first_gradient = 0.0;  ///< of its last chunk
  double after_last_gradient = 0.0;    ///< upstream of its first chunk
  double held = 0.0;                   ///< least time of a microbatch's activations, of all chunks
};

/// Pre: the layers run through a stage's chunks in ascending order.
std::vector<Surroundings> surroundings_of(const SearchGoal& goal, const ChunkOrder& order) {
  const std::vector<StageChunk>& chunks = order.chunks();
  const StageCosts& costs = goal.costs;
  const auto hop = [&](std::size_t i) {
    return i > 0 && chunks[i].stage != chunks[i - 1].stage
               ? costs.link(chunks[i - 1].stage, chunks[i].stage)
               : LinkTimes();
  };
  std::vector<Surroundings> all(at(goal.size.stages));
  std::vector<double> begins;  // of the forwards of one microbatch
  double forward = 0.0;
  double upstream_gradients = costs.times_of(chunks.front()).backward_weight_seconds;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Surroundings& around = all[at(chunks[i].stage)];
    forward += hop(i).activation_seconds;
    upstream_gradients += hop(i).gradient_seconds;
    begins.push_back(forward);
    if (chunks[i].chunk == 0) {
      around.before_first_forward = forward;
      around.after_last_gradient = upstream_gradients;
    }
    forward += costs.times_of(chunks[i]).forward_seconds;
    upstream_gradients += costs.times_of(chunks[i]).backward_input_seconds;
  }
  double gradient = forward;
  for (std::size_t i = chunks.size(); i-- > 0;) {
    if (chunks[i].chunk == goal.size.chunks - 1) {
      all[at(chunks[i].stage)].before_first_gradient = gradient;
    }
    const ChunkTimes& own = costs.times_of(chunks[i]);
    gradient += own.backward_input_seconds;
    all[at(chunks[i].stage)].held += gradient - begins[i] + own.backward_weight_seconds;
    gradient += hop(i).gradient_seconds;
  }
  return all;
}

/// Less step time, or a smaller longest bubble at the same step time.
bool is_better(const ListTimes& times, const ListTimes& than) {
  constexpr double kSame = 1e-9;
  const double difference = times.makespan_seconds - than.makespan_seconds;
  if (std::abs(difference) > kSame * than.makespan_seconds) {
    return difference < 0.0;
  }
  return times.longest_bubble_seconds < than.longest_bubble_seconds * (1.0 - kSame);
}

/// Tries rules and keeps the best.
class RuleSearch {
 public:
  explicit RuleSearch(const SearchGoal& goal)
      : goal_(goal),
        scheduler_(shape_, goal),
        most_lead_(std::min(std::ranges::max(goal.most_live), goal.size.microbatches)) {}

  Schedule best() {
    try_starts();
    improve();
    static_cast<void>(scheduler_.lay_out(best_rules_));
    Schedule schedule = shape_;
    schedule.stage_actions = scheduler_.take_actions();
    return insert_communication(std::move(schedule));
  }

 private:
  /// Bounds the time of a search to seconds.
  static constexpr std::int64_t kMostActions = 12'000'000;

  [[nodiscard]] bool done() const {
    const std::int64_t actions =
        3 * goal_.size.stages * goal_.size.chunks * goal_.size.microbatches;
    return tries_ > 0 && (tries_ + 1) * actions > kMostActions;
  }

  bool improves(ListRules rules) {
    for (std::int64_t stage = 0; stage < goal_.size.stages; ++stage) {
      StageRules& own = rules.stages[at(stage)];
      own.lead = std::clamp<std::int64_t>(own.lead, 1, most_lead_);
      own.backlog = std::clamp<std::int64_t>(own.backlog, 0, goal_.room(stage));
    }
    if (done() || rules == best_rules_) {
      return false;
    }
    ++tries_;
    const ListTimes times = scheduler_.lay_out(rules);
    if (!is_better(times, best_times_)) {
      return false;
    }
    best_times_ = times;
    best_rules_ = std::move(rules);
    return true;
  }

  /// Leads by the distance from the end, and by the forwards that fit before the first gradient.
  void try_starts() {
    const std::vector<Surroundings> around = surroundings_of(goal_, shape_.order);
    std::vector<std::vector<std::int64_t>> leads = {
        std::vector<std::int64_t>(at(goal_.size.stages), most_lead_)};
    for (const std::int64_t slope : {2, 1}) {
      for (const std::int64_t offset : {-1, 0, 1}) {
        leads.emplace_back();
        for (std::int64_t stage = 0; stage < goal_.size.stages; ++stage) {
          leads.back().push_back(slope * (goal_.size.stages - stage) + offset);
        }
      }
    }
    for (const std::int64_t offset : {-1, 0, 1}) {
      leads.emplace_back();
      for (std::int64_t stage = 0; stage < goal_.size.stages; ++stage) {
        const Surroundings& wait = around[at(stage)];
        const double forwards = (wait.before_first_gradient - wait.before_first_forward) /
                                goal_.costs.times_of({.stage = stage}).forward_seconds;
        leads.back().push_back(offset + (forwards < static_cast<double>(most_lead_)
                                             ? static_cast<std::int64_t>(std::ceil(forwards))
                                             : most_lead_));
      }
    }
    for (const std::vector<std::int64_t>& lead : leads) {
      for (const double patience : {0.0, 0.5, 1.0}) {
        for (const bool keeps_backlog : {true, false}) {
          for (std::int64_t last = 0; last < goal_.size.chunks; ++last) {
            ListRules rules{.stages = {}, .last_chunk_first = last == 0};
            for (std::int64_t stage = 0; stage < goal_.size.stages; ++stage) {
              rules.stages.push_back({.lead = lead[at(stage)],
                                      .backlog = keeps_backlog ? goal_.room(stage) : stage,
                                      .patience = patience});
            }
            improves(std::move(rules));
          }
        }
      }
    }
  }

  /// Changes a rule of a range of stages, for ever smaller ranges, until no change helps.
  void improve() {
    for (bool better = true; better && !done();) {
      better = false;
      for (std::int64_t span = goal_.size.stages; span >= 1; span /= 2) {
        for (std::int64_t first = 0; first < goal_.size.stages; first += span) {
          const auto with = [&](const auto& change) {
            ListRules rules = best_rules_;
            for (std::int64_t i = first; i < std::min(first + span, goal_.size.stages); ++i) {
              change(rules.stages[at(i)]);
            }
            better = improves(std::move(rules)) || better;
          };
          for (const std::int64_t step : {-2, -1, 1, 2}) {
            with([&](StageRules& own) { own.lead += step; });
            with([&](StageRules& own) { own.backlog += step; });
          }
          for (const double patience : {0.0, 0.25, 0.5, 0.75, 1.0}) {
            with([&](StageRules& own) { own.patience = patience; });
          }
          with([&](StageRules& own) { own.forward_first = !own.forward_first; });
          with([&](StageRules& own) { own.hurries_last = !own.hurries_last; });
        }
      }
    }
  }

  const SearchGoal& goal_;
  Schedule shape_ = shape_of(goal_.size);
  ListScheduler scheduler_;
  std::int64_t most_lead_;
  std::int64_t tries_ = 0;
  ListRules best_rules_;
  ListTimes best_times_{.makespan_seconds = std::numeric_limits<double>::max(),
                        .longest_bubble_seconds = 0.0};
};

ListTimes times_of(const Simulation& simulation) {
  return {.makespan_seconds = simulation.makespan_seconds,
          .longest_bubble_seconds = simulation.longest_bubble_seconds()};
}

std::vector<ScheduleKind> kinds_of(std::int64_t chunks) {
  if (chunks == 2) {
    return {ScheduleKind::kInterleaved, ScheduleKind::kZbV};
  }
  return {ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kZbH1, ScheduleKind::kZbH2};
}

bool fits(const SearchGoal& goal, const std::vector<std::int64_t>& peak_live) {
  bool all = true;
  for (std::int64_t stage = 0; stage < goal.size.stages; ++stage) {
    all = all && peak_live[at(stage)] <= goal.room(stage);
  }
  return all;
}

/// Replaces what was found by the schedule of this kind where it fits and is faster, or where there
/// is none yet.
void try_named(const SearchGoal& goal, ScheduleKind kind, FoundSchedule& found) {
  const Schedule named = make_schedule(kind, goal.size);
  if (!fits(goal, check(named).peak_live)) {
    return;
  }
  const double seconds = simulate(named, goal.costs, Record::kTotals).makespan_seconds;
  if (!found.best_named || seconds < found.best_named->makespan_seconds) {
    found.best_named = {.kind = kind, .makespan_seconds = seconds};
  }
  // With the messages that a file of this order would have.
  Schedule order = compute_order(kind, goal.size);
  order.kind = ScheduleKind::kFile;
  Schedule schedule = insert_communication(std::move(order));
  Simulation simulation = simulate(schedule, goal.costs, Record::kTotals);
  if (found.schedule.stage_actions.empty() ||
      is_better(times_of(simulation), times_of(found.simulation))) {
    found.schedule = std::move(schedule);
    found.simulation = std::move(simulation);
  }
}

}  // namespace

double lower_bound_seconds(const SearchGoal& goal, const ChunkOrder& order) {
  const StageCosts& costs = goal.costs;
  const std::int64_t all = goal.size.microbatches * goal.size.chunks;
  const auto microbatches = static_cast<double>(goal.size.microbatches);
  const std::vector<Surroundings> around = surroundings_of(goal, order);
  double bound = 0.0;
  for (std::size_t stage = 0; stage < around.size(); ++stage) {
    const std::int64_t most_live = goal.room(static_cast<std::int64_t>(stage));
    const auto room = static_cast<double>(std::min(most_live, all));
    double forward = 0.0;
    double passes = 0.0;  // forwards and input gradients
    double weights = 0.0;
    double longest_weight = 0.0;
    for (std::int64_t chunk = 0; chunk < goal.size.chunks; ++chunk) {
      const ChunkTimes& own =
          costs.times_of({.stage = static_cast<std::int64_t>(stage), .chunk = chunk});
      forward = std::max(forward, own.forward_seconds);
      passes += microbatches * (own.forward_seconds + own.backward_input_seconds);
      weights += microbatches * own.backward_weight_seconds;
      longest_weight = std::max(longest_weight, own.backward_weight_seconds);
    }
    const double before = around[stage].before_first_forward;
    const double wait =
        std::max(0.0, around[stage].before_first_gradient - before - room * forward);
    const double drained =
        passes + std::max(0.0, weights - room * longest_weight) + around[stage].after_last_gradient;
    const double held = microbatches * around[stage].held / static_cast<double>(most_live);
    bound = std::max({bound, before + wait + std::max(passes + weights, drained), before + held});
  }
  return bound;
}

namespace {

/// By rules, with one chunk or two in a V, and the schedules of these kinds.
FoundSchedule search(const SearchGoal& goal, const std::vector<ScheduleKind>& kinds) {
  require(goal.size.chunks == 1 || goal.size.chunks == 2,
          "schedules are made of one or two chunks a stage, not {}", goal.size.chunks);
  FoundSchedule found{.schedule = RuleSearch(goal).best(),
                      .simulation = {},
                      .lower_bound_seconds = 0.0,
                      .best_named = std::nullopt};
  found.simulation = simulate(found.schedule, goal.costs, Record::kTotals);
  for (const ScheduleKind kind : kinds) {
    try_named(goal, kind, found);
  }
  found.lower_bound_seconds = lower_bound_seconds(goal, found.schedule.order);
  return found;
}

}  // namespace

FoundSchedule search(const SearchGoal& goal) {
  return search(goal, kinds_of(goal.size.chunks));
}

std::optional<FoundChunks> search(const ChunksGoal& goal) {
  std::optional<FoundChunks> best;
  const auto keep = [&](FoundSchedule found, StageCosts costs) {
    std::optional<NamedTime> named = found.best_named;
    if (best && best->found.best_named &&
        (!named || best->found.best_named->makespan_seconds <= named->makespan_seconds)) {
      named = best->found.best_named;
    }
    if (!best || is_better(times_of(found.simulation), times_of(best->found.simulation))) {
      best = {.found = std::move(found), .costs = std::move(costs)};
    }
    best->found.best_named = named;
  };
  for (const std::int64_t chunks : goal.chunks) {
    SearchGoal of_chunks{.size = {goal.stages, goal.microbatches, chunks},
                         .costs = {},
                         .most_live = goal.activations};
    for (std::int64_t& most : of_chunks.most_live) {
      most *= chunks;
    }
    if (chunks <= 2) {
      of_chunks.costs = goal.costs(ChunkOrder::v(goal.stages, chunks));
      keep(search(of_chunks, chunks == 1 ? kinds_of(1) : std::vector{ScheduleKind::kZbV}),
           of_chunks.costs);
    }
    if (chunks > 1) {
      FoundSchedule interleaved;
      of_chunks.costs = goal.costs(ChunkOrder::loop(goal.stages, chunks));
      try_named(of_chunks, ScheduleKind::kInterleaved, interleaved);
      if (interleaved.best_named) {
        interleaved.lower_bound_seconds =
            lower_bound_seconds(of_chunks, interleaved.schedule.order);
        keep(std::move(interleaved), of_chunks.costs);
      }
    }
  }
  return best;
}

}  // namespace strata::pipeline
