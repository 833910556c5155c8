#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// An action in a stage's list.
struct ActionPlace {
  std::int64_t stage = -1;  ///< negative: of no stage alone
  Action action;
};

/// A report has no more errors than this.
inline constexpr std::int64_t kMostErrors = 1000;

/// The result of check().
struct CheckReport {
  /// For each stage, the peak number of microbatches (times chunks) whose activations are live.
  std::vector<std::int64_t> peak_live;
  /// Whether the schedule also completes with rendezvous sends, each stage with at most one
  /// unfinished send of each kind to each chunk. Meaningless where there are errors.
  bool passes_with_rendezvous_sends = false;
  /// Each names the stage, the action and the microbatch; empty for a sound schedule. The first
  /// kMostErrors.
  std::vector<std::string> errors;
  /// What each error is about; an action that is missing is not in the list. Of a deadlock, where
  /// its first stage waits.
  std::vector<ActionPlace> places;
  /// Of a schedule from a file: weight gradients that follow one of a later microbatch. It is
  /// sound, but training with it would not keep its bits (design law 1).
  std::vector<ActionPlace> descending_weights;

  [[nodiscard]] bool passed() const { return errors.empty(); }
};

/// The largest number of activations that a stage may hold at once in a schedule of this kind.
[[nodiscard]] std::int64_t live_bound(const Schedule& schedule, std::int64_t stage);

/// Checks a schedule by walking its lists. A schedule is sound if:
///  - every microbatch has each of its compute actions once on every stage and chunk, in the order
///    forward, backward-input, backward-weight, with weight gradients ascending by microbatch;
///  - every receive precedes and every send follows its compute action, and one reduce ends a list
///    that has weight gradients;
///  - every send matches one receive on the right stage, and a chunk receives messages of one kind
///    in the order in which they are sent;
///  - every list runs to its end if sends never block and receives do;
///  - the live activations stay within live_bound().
/// An activation is live from its forward to its backward-weight; without backward passes, until
/// its output is sent or, on the last stage, computed.
[[nodiscard]] CheckReport check(const Schedule& schedule);

/// Refuses an unsound schedule.
/// Throws: std::logic_error with the first of check()'s errors.
void require_sound(const Schedule& schedule);

}  // namespace strata::pipeline
