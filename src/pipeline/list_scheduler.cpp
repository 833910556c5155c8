#include "list_scheduler.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "strata/core/error.hpp"

namespace strata::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

ListScheduler::ListScheduler(const Schedule& shape, const SearchGoal& goal)
    : stages_count_(shape.stages),
      chunks_(shape.chunks),
      microbatches_(shape.microbatches),
      goal_(goal),
      costs_(goal.costs) {
  const std::int64_t least = std::ranges::min(goal.most_live);
  require(least >= chunks_, "{} activations are too few for a microbatch on {} chunks", least,
          chunks_);
  const auto number_of = [&](const std::optional<StageChunk>& position) {
    return position ? position->stage * chunks_ + position->chunk : -1;
  };
  for (std::int64_t stage = 0; stage < stages_count_; ++stage) {
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const StageChunk position{.stage = stage, .chunk = chunk};
      chain_.push_back({.upstream = number_of(upstream(shape, position)),
                        .downstream = number_of(downstream(shape, position))});
    }
  }
}

ListTimes ListScheduler::lay_out(const ListRules& rules) {
  const std::size_t chunks = chain_.size();
  chunk_.assign(chunks, {});
  stage_.assign(at(stages_count_), {});
  forward_arrivals_.assign(chunks * at(microbatches_), kNever);
  gradient_arrivals_.assign(chunks * at(microbatches_), kNever);
  actions_.resize(at(stages_count_));
  for (std::int64_t stage = 0; stage < stages_count_; ++stage) {
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
  for (std::int64_t stage = 0; stage < stages_count_; ++stage) {
    require(actions_[at(stage)].size() == at(3 * chunks_ * microbatches_),
            "stage {} never ends its list", stage);
    const Stage& clock = stage_[at(stage)];
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
  for (std::int64_t i = 0; i < chunks_; ++i) {
    const std::int64_t chunk = rules.last_chunk_first ? chunks_ - 1 - i : i;
    const std::int64_t here = stage * chunks_ + chunk;
    const Chunk& done = chunk_[at(here)];
    const std::int64_t waiting = done.input_gradients - done.weight_gradients;
    if (waiting > own.backlog) {
      return {.kind = ActionKind::kBackwardWeight, .chunk = chunk};
    }
    if (weight.chunk < 0 && waiting > 0) {
      weight.chunk = chunk;
    }
    if (done.input_gradients < done.forwards) {
      const double arrival = gradient_arrival(here, done.input_gradients);
      if (arrival > now) {
        next = std::min(next, arrival);
      } else if (input.chunk < 0) {
        input.chunk = chunk;
      }
    }
    if (done.forwards < microbatches_ && may_forward(stage, chunk, own)) {
      const double arrival = forward_arrival(here, done.forwards);
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
          : costs_.times_of({.stage = stage, .chunk = weight.chunk}).backward_weight_seconds;
  const bool last = chunk_[at(stage * chunks_)].input_gradients == microbatches_ - 1;
  const double patience = last && own.hurries_last ? 0.0 : own.patience;
  if (weight.chunk >= 0 && (full || now + seconds * (1.0 - patience) <= next)) {
    return weight;
  }
  return {};
}

bool ListScheduler::may_forward(std::int64_t stage, std::int64_t chunk,
                                const StageRules& rules) const {
  const Chunk& done = chunk_[at(stage * chunks_)];
  return chunk > 0 || done.forwards - done.input_gradients < rules.lead;
}

// A forward of the last chunk always finds room in the end, and with it the oldest microbatch.
bool ListScheduler::has_room(std::int64_t stage, std::int64_t chunk) const {
  return stage_[at(stage)].live + chunks_ - chunk <= goal_.room(stage);
}

void ListScheduler::run(std::int64_t stage, const Choice& choice, double now) {
  const std::int64_t here = stage * chunks_ + choice.chunk;
  Chunk& done = chunk_[at(here)];
  Stage& clock = stage_[at(stage)];
  if (actions_[at(stage)].empty()) {
    clock.first_begin = now;
  }
  std::int64_t microbatch = 0;
  const double seconds = costs_.times_of({.stage = stage, .chunk = choice.chunk}).of(choice.kind);
  if (choice.kind == ActionKind::kForward) {
    microbatch = done.forwards++;
    ++clock.live;
  } else if (choice.kind == ActionKind::kBackwardInput) {
    microbatch = done.input_gradients++;
  } else {
    microbatch = done.weight_gradients++;
    --clock.live;
  }
  actions_[at(stage)].push_back(
      {.kind = choice.kind, .microbatch = microbatch, .chunk = choice.chunk});
  clock.free = now + seconds;
  clock.busy += seconds;
  looks_.emplace(clock.free, stage);
  const Chain& chain = chain_[at(here)];
  if (choice.kind == ActionKind::kForward && chain.downstream < 0) {
    arrive(gradient_arrivals_, here, here, microbatch, clock.free);
  } else if (choice.kind == ActionKind::kForward) {
    arrive(forward_arrivals_, here, chain.downstream, microbatch, clock.free);
  } else if (choice.kind == ActionKind::kBackwardInput && chain.upstream >= 0) {
    arrive(gradient_arrivals_, here, chain.upstream, microbatch, clock.free);
  }
}

void ListScheduler::arrive(std::vector<double>& arrivals, std::int64_t from, std::int64_t to,
                           std::int64_t microbatch, double end) {
  double arrival = end;
  if (from / chunks_ != to / chunks_) {
    const LinkTimes& link = costs_.link(from / chunks_, to / chunks_);
    arrival += &arrivals == &gradient_arrivals_ ? link.gradient_seconds : link.activation_seconds;
  }
  arrivals[at(to * microbatches_ + microbatch)] = arrival;
  looks_.emplace(arrival, to / chunks_);
}

double ListScheduler::forward_arrival(std::int64_t here, std::int64_t microbatch) const {
  return chain_[at(here)].upstream < 0 ? 0.0
                                       : forward_arrivals_[at(here * microbatches_ + microbatch)];
}

double ListScheduler::gradient_arrival(std::int64_t here, std::int64_t microbatch) const {
  return gradient_arrivals_[at(here * microbatches_ + microbatch)];
}

}  // namespace strata::pipeline
