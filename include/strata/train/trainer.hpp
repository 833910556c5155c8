#pragma once

#include <cstdint>

#include "strata/train/setup.hpp"

namespace strata::train {

/// How a run ended.
enum class Outcome { kFinished, kStopped };

/// The result of a run on one rank.
struct FinishedRun {
  Outcome outcome = Outcome::kFinished;
  std::int64_t graphs = 0;  ///< CUDA graphs that its steps launched at the end
};

/// Trains from the first step, or from the checkpoint's, to the last. Writes metrics, the resolved
/// config and checkpoints to run.dir. Communication: collective over the world.
/// Throws: AgreedError or Error with the exit code of the failure.
[[nodiscard]] FinishedRun train(const TrainerSetup& setup);

}  // namespace strata::train
