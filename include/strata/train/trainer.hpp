#pragma once

#include "strata/train/setup.hpp"

namespace strata::train {

/// How a run ended.
enum class Outcome { kFinished, kStopped };

/// Trains from the first step, or from the checkpoint's, to the last. Writes metrics, the resolved
/// config and checkpoints to run.dir. Communication: collective over the world.
/// Throws: AgreedError or Error with the exit code of the failure.
[[nodiscard]] Outcome train(const TrainerSetup& setup);

}  // namespace strata::train
