#include <algorithm>
#include <array>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {
namespace {

/// The list of one stage. Actions of one kind ascend by microbatch in each chunk.
class StageList {
 public:
  StageList(std::int64_t chunks, std::int64_t microbatches)
      : next_(static_cast<std::size_t>(chunks), {std::int64_t{0}, 0, 0}) {
    actions_.reserve(next_.size() * next_.front().size() * static_cast<std::size_t>(microbatches));
  }

  void forward(std::int64_t chunk = 0) { add(ActionKind::kForward, chunk); }
  void backward_input(std::int64_t chunk = 0) { add(ActionKind::kBackwardInput, chunk); }
  void backward_weight(std::int64_t chunk = 0) { add(ActionKind::kBackwardWeight, chunk); }
  void backward(std::int64_t chunk = 0) {
    backward_input(chunk);
    backward_weight(chunk);
  }

  /// Microbatches of `chunk` that the list has an action of `kind` for.
  [[nodiscard]] std::int64_t count(ActionKind kind, std::int64_t chunk = 0) const {
    return next_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(kind)];
  }

  /// The list without microbatches from `microbatches` on.
  [[nodiscard]] std::vector<Action> take(std::int64_t microbatches) && {
    std::erase_if(actions_,
                  [&](const Action& action) { return action.microbatch >= microbatches; });
    actions_.shrink_to_fit();
    return std::move(actions_);
  }

 private:
  void add(ActionKind kind, std::int64_t chunk) {
    std::int64_t& next = next_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(kind)];
    actions_.push_back({.kind = kind, .microbatch = next++, .chunk = chunk});
  }

  std::vector<Action> actions_;
  /// By chunk, then by kind: forward, backward-input, backward-weight.
  std::vector<std::array<std::int64_t, 3>> next_;
};

void forwards_only(StageList& list, std::int64_t microbatches) {
  for (std::int64_t i = 0; i < microbatches; ++i) {
    list.forward();
  }
}

/// `lead` forwards, then a backward-input and a forward in turn. A weight gradient follows the
/// backward-input of `delay` microbatches later; after the last forward one follows each
/// backward-input, to fill the wait for the next gradient.
void one_forward_one_backward(StageList& list, std::int64_t microbatches, std::int64_t lead,
                              std::int64_t delay) {
  forwards_only(list, std::min(lead, microbatches));
  for (std::int64_t i = 0; i < microbatches; ++i) {
    list.backward_input();
    const bool drains = list.count(ActionKind::kForward) == microbatches;
    if (drains || i - list.count(ActionKind::kBackwardWeight) >= delay) {
      list.backward_weight();
    }
    if (!drains) {
      list.forward();
    }
  }
  while (list.count(ActionKind::kBackwardWeight) < microbatches) {
    list.backward_weight();
  }
}

/// Groups of as many microbatches as there are stages pass a chunk together. `microbatches` is a
/// multiple of the stages.
void interleaved(StageList& list, const ScheduleSize& size, std::int64_t stage,
                 std::int64_t microbatches) {
  const std::int64_t all = microbatches * size.chunks;
  const auto chunk_of = [&](std::int64_t i) { return i / size.stages % size.chunks; };
  const std::int64_t warm_up = 2 * (size.stages - stage - 1) + (size.chunks - 1) * size.stages + 1;
  for (std::int64_t i = 0; i < all + warm_up; ++i) {
    if (i >= warm_up) {
      list.backward(size.chunks - 1 - chunk_of(i - warm_up));
    }
    if (i < all) {
      list.forward(chunk_of(i));
    }
  }
}

/// Without idle time where forward, backward-input and backward-weight take the same time and there
/// are at least 2 stages - 1 microbatches, and within the activations of one pass through all
/// layers for each stage.
void zb_v(StageList& list, const ScheduleSize& size, std::int64_t stage,
          std::int64_t microbatches) {
  const std::int64_t from_end = size.stages - stage;
  forwards_only(list, 2 * from_end - 1);
  for (std::int64_t i = 0; i < stage; ++i) {
    list.forward(1);
    list.forward(0);
  }
  for (std::int64_t i = 0; i < from_end; ++i) {
    list.forward(1);
    list.backward(1);
  }
  while (list.count(ActionKind::kForward, 1) < microbatches) {
    if (list.count(ActionKind::kForward, 0) < microbatches) {
      list.forward(0);
    }
    list.backward(0);
    list.forward(1);
    list.backward(1);
  }
  for (std::int64_t i = 0; i < stage; ++i) {
    list.backward_input(0);
    list.backward_input(1);
  }
  for (std::int64_t i = 0; i < from_end; ++i) {
    list.backward(0);
  }
  for (const std::int64_t chunk : {1, 0}) {
    while (list.count(ActionKind::kBackwardWeight, chunk) < microbatches) {
      list.backward_weight(chunk);
    }
  }
}

/// Microbatches to lay out: a list without the last microbatches is as sound as the whole.
std::int64_t laid_out(ScheduleKind kind, const ScheduleSize& size) {
  switch (kind) {
    case ScheduleKind::kInterleaved:
      return (size.microbatches + size.stages - 1) / size.stages * size.stages;
    case ScheduleKind::kZbV:
      return std::max(size.microbatches, 2 * size.stages - 1);
    default:
      return size.microbatches;
  }
}

StageList list_of(ScheduleKind kind, const ScheduleSize& size, std::int64_t stage) {
  const std::int64_t microbatches = laid_out(kind, size);
  const std::int64_t from_end = size.stages - stage;
  StageList list(size.chunks, microbatches);
  switch (kind) {
    case ScheduleKind::kGpipe:
      one_forward_one_backward(list, microbatches, microbatches, 0);
      break;
    case ScheduleKind::k1f1b:
      one_forward_one_backward(list, microbatches, from_end, 0);
      break;
    case ScheduleKind::kInterleaved:
      interleaved(list, size, stage, microbatches);
      break;
    case ScheduleKind::kZbH1:
      one_forward_one_backward(list, microbatches, from_end, stage);
      break;
    case ScheduleKind::kZbH2:
      one_forward_one_backward(list, microbatches, 2 * from_end - 1, 2 * stage);
      break;
    case ScheduleKind::kZbV:
      zb_v(list, size, stage, microbatches);
      break;
    case ScheduleKind::kForwardOnly:
    case ScheduleKind::kFile:
      require(false, "{} is no pattern of a stage", name_of(kind));
  }
  return list;
}

}  // namespace

namespace {

Schedule empty_forward_schedule(const ChunkOrder& order, std::int64_t stages,
                                std::int64_t microbatches) {
  Schedule schedule{.kind = ScheduleKind::kForwardOnly,
                    .stages = stages,
                    .microbatches = microbatches,
                    .chunks = 1,
                    .order = order,
                    .stage_actions = {}};
  schedule.stage_actions.resize(static_cast<std::size_t>(stages));
  for (const StageChunk& position : order.chunks()) {
    schedule.chunks = std::max(schedule.chunks, position.chunk + 1);
  }
  return schedule;
}

void add_forward(Schedule& schedule, const StageChunk& position, std::int64_t microbatch) {
  schedule.stage_actions[static_cast<std::size_t>(position.stage)].push_back(
      {.kind = ActionKind::kForward, .microbatch = microbatch, .chunk = position.chunk});
}

}  // namespace

Schedule forward_order(const ChunkOrder& order, std::int64_t stages, std::int64_t microbatches) {
  Schedule schedule = empty_forward_schedule(order, stages, microbatches);
  const std::vector<StageChunk>& chunks = order.chunks();
  std::vector<std::int64_t> done(chunks.size(), 0);
  while (done.back() < microbatches) {
    // One unit of time. From the last chunk, so that an output arrives one unit later.
    std::vector<bool> busy(static_cast<std::size_t>(stages), false);
    for (std::size_t i = chunks.size(); i-- > 0;) {
      const auto stage = static_cast<std::size_t>(chunks[i].stage);
      if (!busy[stage] && done[i] < (i == 0 ? microbatches : done[i - 1])) {
        busy[stage] = true;
        add_forward(schedule, chunks[i], done[i]++);
      }
    }
  }
  return schedule;
}

Schedule one_by_one(const ChunkOrder& order, std::int64_t stages, std::int64_t microbatches) {
  Schedule schedule = empty_forward_schedule(order, stages, microbatches);
  for (std::int64_t m = 0; m < microbatches; ++m) {
    for (const StageChunk& position : order.chunks()) {
      add_forward(schedule, position, m);
    }
  }
  return schedule;
}

Schedule compute_order(ScheduleKind kind, const ScheduleSize& size) {
  require(size.stages >= 1 && size.microbatches >= 1 && size.chunks >= 1,
          "a schedule needs at least one stage, microbatch and chunk, not {}, {} and {}",
          size.stages, size.microbatches, size.chunks);
  const bool any_chunks = kind == ScheduleKind::kInterleaved;
  const std::int64_t chunks = kind == ScheduleKind::kZbV ? 2 : 1;
  require(any_chunks || size.chunks == chunks, "{} has {} chunks a stage, not {}", name_of(kind),
          chunks, size.chunks);
  if (kind == ScheduleKind::kForwardOnly) {
    return forward_order(ChunkOrder::loop(size.stages, 1), size.stages, size.microbatches);
  }
  Schedule schedule{.kind = kind,
                    .stages = size.stages,
                    .microbatches = size.microbatches,
                    .chunks = size.chunks,
                    .order = kind == ScheduleKind::kZbV
                                 ? ChunkOrder::v(size.stages, size.chunks)
                                 : ChunkOrder::loop(size.stages, size.chunks),
                    .stage_actions = {}};
  for (std::int64_t stage = 0; stage < size.stages; ++stage) {
    schedule.stage_actions.push_back(list_of(kind, size, stage).take(size.microbatches));
  }
  return schedule;
}

}  // namespace strata::pipeline
