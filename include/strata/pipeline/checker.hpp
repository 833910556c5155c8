#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// What check() found out about a schedule.
struct CheckReport {
  /// For each stage, the most microbatches (times chunks) whose activations are held at once.
  std::vector<std::int64_t> peak_live;
  /// Whether it also ends where a send lasts until its receive is reached, each stage having at
  /// most one unfinished send to each peer. Meaningless where there are errors.
  bool passes_with_rendezvous_sends = false;
  /// Each names the stage, the action and the microbatch; empty where the schedule is sound.
  std::vector<std::string> errors;

  [[nodiscard]] bool passed() const { return errors.empty(); }
};

/// The most activations that a stage may hold at once under a schedule of this kind.
[[nodiscard]] std::int64_t live_bound(const Schedule& schedule, std::int64_t stage);

/// Proves a schedule, by walking its lists. Sound means:
///  - every microbatch has each of its compute actions once on every stage and chunk, in the order
///    forward, backward-input, backward-weight, with weight gradients ascending by microbatch;
///  - every receive comes before and every send after the action that it is for, and a reduce,
///    where there are weight gradients, comes once and last;
///  - every send is met by one receive on the right stage, and messages between two stages are
///    received in the order in which they are sent;
///  - with sends that never block and receives that do, every list runs to its end;
///  - the activations held at once stay within live_bound().
/// An activation is held from its forward to its backward-weight; without backward passes, until
/// its output is sent or, on the last stage, made.
[[nodiscard]] CheckReport check(const Schedule& schedule);

/// Refuses an unsound schedule.
/// Throws: std::logic_error with the first of check()'s errors.
void require_sound(const Schedule& schedule);

}  // namespace strata::pipeline
