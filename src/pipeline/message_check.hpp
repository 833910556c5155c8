#pragma once

#include <string>
#include <vector>

#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// For each pair of stages: what is sent must be what is received, in the same order.
[[nodiscard]] std::vector<std::string> message_errors(const Schedule& schedule);

/// How long a send lasts.
enum class Sends {
  kNeverBlock,
  kRendezvous  ///< until its receive; a stage waits before its next send to the same peer
};

/// Runs all lists side by side; where they stick, what each stage waits at, else nothing.
/// Pre: message_errors() found nothing, so that counting messages tells them apart.
[[nodiscard]] std::string hang_of(const Schedule& schedule, Sends sends);

}  // namespace strata::pipeline
