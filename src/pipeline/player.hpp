#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// When a send completes.
enum class Sends {
  kNeverBlock,
  kRendezvous,  ///< with its receive; a stage waits for it before its next send of this kind to the
                ///< chunk
  kHostWaits,   ///< with its receive; before an action that computes a stage waits for all its
                ///< messages, sent and received
  kSlots  ///< with its receive; a stage waits for a gradient before it reuses the gradient's slot
};

/// The number of a message, the same at its send and at its receive, less than message_count().
/// Negative where the message goes nowhere or the peer is another.
[[nodiscard]] std::int64_t message_number(const Schedule& schedule, std::int64_t stage,
                                          const Action& action);
[[nodiscard]] std::size_t message_count(const Schedule& schedule);

/// Sees each action that has run.
using Ran = std::function<void(std::int64_t stage, const Action& action)>;

/// Runs the lists of all stages concurrently, each until it ends or waits for ever. With
/// kNeverBlock a receive runs after its send. Returns: how many actions of each stage ran.
/// `gradient_slots`: of each chunk, in layer order, for kSlots.
/// Pre: the messages match (check), so that counting messages identifies them; for kSlots, actions
/// of a kind ascend by microbatch in each chunk.
std::vector<std::size_t> play(const Schedule& schedule, Sends sends,
                              std::span<const std::int64_t> gradient_slots, const Ran& ran);

/// For a deadlock of play(), what each stage waits for, at the action of the first that waits.
[[nodiscard]] std::optional<PlacedError> hang_of(const Schedule& schedule, Sends sends,
                                                 std::span<const std::int64_t> gradient_slots = {});

}  // namespace strata::pipeline
