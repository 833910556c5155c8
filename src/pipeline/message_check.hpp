#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// What is wrong, and the action to look at.
struct PlacedError {
  ActionPlace place;
  std::string text;
};

/// Mismatches between what each pair of stages sends and receives, in order; each at the first
/// message that does not match.
[[nodiscard]] std::vector<PlacedError> message_errors(const Schedule& schedule);

/// When a send completes.
enum class Sends {
  kNeverBlock,
  kRendezvous,  ///< with its receive; a stage waits for it before its next send of this kind to the
                ///< chunk
  kHostWaits,   ///< with its receive; before an action that computes a stage waits for all its
                ///< messages, sent and received
  kSlots  ///< with its receive; a stage waits for a gradient before it reuses the gradient's slot
};

/// Runs all lists concurrently. Returns: for a deadlock, what each stage waits for, at the action
/// of the first that waits; else nothing. `gradient_slots`: of each chunk, in layer order, for
/// kSlots. Pre: message_errors() found nothing, so that counting messages identifies them; for
/// kSlots, actions of a kind ascend by microbatch in each chunk.
[[nodiscard]] std::optional<PlacedError> hang_of(const Schedule& schedule, Sends sends,
                                                 std::span<const std::int64_t> gradient_slots = {});

}  // namespace strata::pipeline
