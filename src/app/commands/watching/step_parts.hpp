#pragma once

namespace strata::app {

/// A part of a step's time: its key in metrics.jsonl and its name for people.
struct StepPart {
  const char* key;
  const char* name;
};

/// The time account (design law 8), in the order of bars and lines.
inline constexpr StepPart kStepParts[] = {{"compute_seconds", "compute"},
                                          {"communication_seconds", "exposed communication"},
                                          {"bubble_seconds", "bubble"},
                                          {"data_seconds", "data wait"},
                                          {"other_seconds", "other"}};

}  // namespace strata::app
