#pragma once

#include <string>
#include <vector>

#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// Mismatches between what each pair of stages sends and receives, in order.
[[nodiscard]] std::vector<std::string> message_errors(const Schedule& schedule);

/// When a send completes.
enum class Sends {
  kNeverBlock,
  kRendezvous  ///< with its receive; a stage waits for it before its next send of this kind to the
               ///< chunk
};

/// Runs all lists concurrently. Returns: for a deadlock, what each stage waits for; else nothing.
/// Pre: message_errors() found nothing, so that counting messages identifies them.
[[nodiscard]] std::string hang_of(const Schedule& schedule, Sends sends);

}  // namespace strata::pipeline
