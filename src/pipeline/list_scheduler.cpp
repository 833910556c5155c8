#include "list_scheduler.hpp"

#include <algorithm>
#include <limits>

#include "strata/core/error.hpp"

#include "index.hpp"

namespace strata::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

ListScheduler::ListScheduler(const Schedule& shape, const SearchGoal& goal)
    : shape_(shape), goal_(goal) {
  const std::int64_t least = std::ranges::min(goal.most_live);
  require(least >= shape.chunks, "{} activations are too few for a microbatch on {} chunks", least,
          shape.chunks);
}

ListTimes ListScheduler::lay_out(const ListRules& rules) {
  const std::size_t chunks = shape_.order.chunks().size();
  chunk_.assign(chunks, {});
  stage_.assign(at(shape_.stages), {});
  forward_arrivals_.assign(message(chunks, 0), kNever);
  gradient_arrivals_.assign(message(chunks, 0), kNever);
  std::fill_n(forward_arrivals_.begin(), shape_.microbatches, 0.0);
  actions_.resize(at(shape_.stages));
  for (std::int64_t stage = 0; stage < shape_.stages; ++stage) {
    actions_[at(stage)].clear();
    looks_.emplace(0.0, stage);
  }
  while (!looks_.empty()) {
    const auto [now, stage] = looks_.top();
    looks_.pop();
    if (stage_[at(stage)].free > now) {
      continue;
    }
    const Choice choice = choose(stage, now, rules);
    if (choice.chunk >= 0) {
      run(stage, choice, now);
    }
  }
  ListTimes times;
  for (std::size_t stage = 0; stage < stage_.size(); ++stage) {
    require(actions_[stage].size() == at(3 * shape_.chunks * shape_.microbatches),
            "stage {} never ends its list", stage);
    const Stage& clock = stage_[stage];
    times.makespan_seconds = std::max(times.makespan_seconds, clock.free);
    times.longest_bubble_seconds =
        std::max(times.longest_bubble_seconds, clock.free - clock.first_begin - clock.busy);
  }
  return times;
}

std::vector<std::vector<Action>> ListScheduler::take_actions() {
  return std::move(actions_);
}

ListScheduler::Choice ListScheduler::choose(std::int64_t stage, double now,
                                            const ListRules& rules) const {
  const StageRules& own = rules.stages[at(stage)];
  Choice forward{.kind = ActionKind::kForward};
  Choice input{.kind = ActionKind::kBackwardInput};
  Choice weight{.kind = ActionKind::kBackwardWeight};
  double next = kNever;  // the first known arrival of what could run
  bool full = false;     // a forward is ready and there is no room for it
  const Chunk& first = chunk_[index_of(stage, 0)];
  for (std::int64_t i = 0; i < shape_.chunks; ++i) {
    const std::int64_t chunk = rules.last_chunk_first ? shape_.chunks - 1 - i : i;
    const std::size_t here = index_of(stage, chunk);
    const Chunk& done = chunk_[here];
    const std::int64_t waiting = done.input_gradients - done.weight_gradients;
    if (waiting > own.backlog) {
      return {.kind = ActionKind::kBackwardWeight, .chunk = chunk};
    }
    if (weight.chunk < 0 && waiting > 0) {
      weight.chunk = chunk;
    }
    if (done.input_gradients < done.forwards) {
      const double arrival = gradient_arrivals_[message(here, done.input_gradients)];
      if (arrival > now) {
        next = std::min(next, arrival);
      } else if (input.chunk < 0) {
        input.chunk = chunk;
      }
    }
    if (done.forwards < shape_.microbatches &&
        (chunk > 0 || first.forwards - first.input_gradients < own.lead)) {
      const double arrival = forward_arrivals_[message(here, done.forwards)];
      const bool room = has_room(stage, chunk);
      if (arrival > now) {
        next = room ? std::min(next, arrival) : next;
      } else if (!room) {
        full = true;
      } else if (forward.chunk < 0) {
        forward.chunk = chunk;
      }
    }
  }
  if (forward.chunk >= 0 && (own.forward_first || input.chunk < 0)) {
    return forward;
  }
  if (input.chunk >= 0) {
    return input;
  }
  const double seconds =
      weight.chunk < 0
          ? 0.0
          : goal_.costs.times_of({.stage = stage, .chunk = weight.chunk}).backward_weight_seconds;
  const bool last = first.input_gradients == shape_.microbatches - 1;
  const double patience = last && own.hurries_last ? 0.0 : own.patience;
  if (weight.chunk >= 0 && (full || now + seconds * (1.0 - patience) <= next)) {
    return weight;
  }
  return {};
}

// A forward of the last chunk always finds room in the end, and with it the oldest microbatch.
bool ListScheduler::has_room(std::int64_t stage, std::int64_t chunk) const {
  return stage_[at(stage)].live + shape_.chunks - chunk <= goal_.room(stage);
}

void ListScheduler::run(std::int64_t stage, const Choice& choice, double now) {
  const std::size_t here = index_of(stage, choice.chunk);
  Chunk& done = chunk_[here];
  Stage& clock = stage_[at(stage)];
  if (actions_[at(stage)].empty()) {
    clock.first_begin = now;
  }
  const double seconds =
      goal_.costs.times_of({.stage = stage, .chunk = choice.chunk}).of(choice.kind);
  clock.free = now + seconds;
  clock.busy += seconds;
  looks_.emplace(clock.free, stage);
  std::int64_t microbatch = 0;
  if (choice.kind == ActionKind::kForward) {
    microbatch = done.forwards++;
    ++clock.live;
    if (here + 1 < chunk_.size()) {
      arrive(forward_arrivals_, here, here + 1, microbatch, clock.free);
    } else {
      arrive(gradient_arrivals_, here, here, microbatch, clock.free);
    }
  } else if (choice.kind == ActionKind::kBackwardInput) {
    microbatch = done.input_gradients++;
    if (here > 0) {
      arrive(gradient_arrivals_, here, here - 1, microbatch, clock.free);
    }
  } else {
    microbatch = done.weight_gradients++;
    --clock.live;
  }
  actions_[at(stage)].push_back(
      {.kind = choice.kind, .microbatch = microbatch, .chunk = choice.chunk});
}

void ListScheduler::arrive(std::vector<double>& arrivals, std::size_t from, std::size_t to,
                           std::int64_t microbatch, double end) {
  const std::int64_t sender = shape_.order.chunks()[from].stage;
  const std::int64_t receiver = shape_.order.chunks()[to].stage;
  double arrival = end;
  if (sender != receiver) {
    const LinkTimes& link = goal_.costs.link(sender, receiver);
    arrival += &arrivals == &gradient_arrivals_ ? link.gradient_seconds : link.activation_seconds;
  }
  arrivals[message(to, microbatch)] = arrival;
  looks_.emplace(arrival, receiver);
}

std::size_t ListScheduler::index_of(std::int64_t stage, std::int64_t chunk) const {
  return at(chunk == 0 ? stage : 2 * shape_.stages - 1 - stage);
}

std::size_t ListScheduler::message(std::size_t index, std::int64_t microbatch) const {
  return index * at(shape_.microbatches) + at(microbatch);
}

}  // namespace strata::pipeline
