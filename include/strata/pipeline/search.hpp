#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline {

/// What a schedule is made for.
struct SearchGoal {
  /// One chunk a stage, or two, placed as a V.
  ScheduleSize size;
  StageCosts costs;
  /// The most activations of a chunk that each stage holds at once, from forward to weight
  /// gradient; one number for all, or one for each.
  std::vector<std::int64_t> most_live = {1};

  [[nodiscard]] std::int64_t room(std::int64_t stage) const {
    return most_live[most_live.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  }
};

/// A schedule by name and its step time.
struct NamedTime {
  ScheduleKind kind = ScheduleKind::kGpipe;
  double makespan_seconds = 0.0;
};

/// A schedule made to measure.
struct FoundSchedule {
  /// Of kind kFile. Weight gradients ascend by microbatch in every chunk.
  Schedule schedule;
  Simulation simulation;             ///< totals
  double lower_bound_seconds = 0.0;  ///< with the chunks placed as they are
  /// The fastest of as many chunks whose activations fit; ties go to the first in ScheduleKind.
  std::optional<NamedTime> best_named;
};

/// What a schedule of any number of chunks a stage is made for.
struct ChunksGoal {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
  /// The chunks a stage to try, ascending: with 1 and 2 all orders, with more only interleaved.
  std::vector<std::int64_t> chunks = {1};
  /// The most activations of all its layers that each stage holds at once; as
  /// SearchGoal::most_live.
  std::vector<std::int64_t> activations = {1};
  /// The costs of the chunks of an order.
  std::function<StageCosts(const ChunkOrder&)> costs;
};

/// A schedule made to measure, and the costs of its chunks.
struct FoundChunks {
  FoundSchedule found;
  StageCosts costs;
};

/// No schedule for `goal` whose chunks lie as in `order` takes less time. It is the largest, over
/// stages, of two sums. One is of
///  - the time before the stage's first forward can begin: all forwards and messages upstream of
///    it;
///  - the wait for its first gradient: the time of the forwards, input gradients and messages that
///    lie between its first forward and that gradient, less that of the forwards which the stage
///    has room for;
///  - the longer of its own work, and of its forwards, its input gradients and as many weight
///    gradients as must make room for forwards, followed by the input gradients and messages
///    upstream of its last one and by the first stage's weight gradient.
/// The other is of the time before its first forward, and of the time for which all microbatches
/// hold activations on it, each as short as it can, shared by the activations that it has room for.
/// Pre: the layers run through a stage's chunks in ascending order.
[[nodiscard]] double lower_bound_seconds(const SearchGoal& goal, const ChunkOrder& order);

/// Searches for the order of compute actions with the least step time, and among those of the same
/// step time with the least longest bubble: lays out lists along the time by rules, improves the
/// best rules stage by stage, and simulates the schedules by name. It ends where no change helps or
/// after a fixed number of actions, and gives the same schedule each time. Never worse than
/// best_named.
/// Pre: each size >= 1; one or two chunks; most_live >= chunks; costs of size.stages stages.
/// Source: the rules extend those of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024,
/// section 3.1.
[[nodiscard]] FoundSchedule search(const SearchGoal& goal);

/// The one with the least step time of search() for each number of chunks, the fewest chunks where
/// they are equal; nothing where no schedule of these chunks fits. best_named is that of all.
[[nodiscard]] std::optional<FoundChunks> search(const ChunksGoal& goal);

}  // namespace strata::pipeline
