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
  /// The fastest with the same number of chunks that fits into the memory; ties go to the first in
  /// ScheduleKind.
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

/// A lower bound of the step time with the chunks in this order: the largest of two sums over all
/// stages. The first sum has
///  - the time before the stage's first forward can begin: all forwards and messages upstream of
///    it;
///  - the wait for its first gradient: the time of the forwards, input gradients and messages that
///    lie between its first forward and that gradient, minus the forwards that fit into the stage's
///    memory;
///  - the longer of its own work, and of its forwards, its input gradients and as many weight
///    gradients as must make room for forwards, followed by the input gradients and messages
///    upstream of its last one and by the first stage's weight gradient.
/// The second sum has the time before its first forward, and the least time for which all
/// microbatches hold activations on the stage, divided by the activations that fit into its memory.
/// Pre: the layers run through a stage's chunks in ascending order.
[[nodiscard]] double lower_bound_seconds(const SearchGoal& goal, const ChunkOrder& order);

/// Searches for the order of compute actions with the least step time; ties go to the shorter
/// longest bubble. It lays out lists by rules, improves the best rules stage by stage, and
/// simulates the schedules by name. It ends when no change helps or after a fixed number of
/// actions. Deterministic, and never worse than best_named.
/// Pre: each size >= 1; one or two chunks; most_live >= chunks; costs of size.stages stages.
/// Source: the rules extend Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3.1.
[[nodiscard]] FoundSchedule search(const SearchGoal& goal);

/// The fastest result of search() over these numbers of chunks; ties go to fewer chunks. Nothing if
/// no schedule fits. best_named is the fastest over all of them.
[[nodiscard]] std::optional<FoundChunks> search(const ChunksGoal& goal);

}  // namespace strata::pipeline
