#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/comm/groups.hpp"
#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// How a run ended.
enum class Outcome { kFinished, kStopped };

/// What a run came to on a rank.
struct FinishedRun {
  Outcome outcome = Outcome::kFinished;
  std::int64_t graphs = 0;  ///< pieces of a step that its GPU was given as CUDA graphs at the end
};

/// What a run works with.
struct TrainerSetup {
  const plan::Plan& plan;
  comm::Groups& groups;
  ops::Context& context;
  const io::Dataset& train_data;
  const io::Dataset* test_data = nullptr;      ///< null: no evaluation
  const io::Checkpoint* checkpoint = nullptr;  ///< null: begins anew
  std::string config_text;
  /// What a rank can do at most in matrix products of the model's dtype, in FLOP/s; 0: not known.
  double peak_flops = 0.0;
  Log& log;
};

/// Trains from the first step, or from the checkpoint's, to the last; writes metrics, the resolved
/// config and checkpoints into run.dir. Communication: collective over the world. Throws:
/// AgreedError or Error with the exit code that fits.
[[nodiscard]] FinishedRun train(const TrainerSetup& setup);

}  // namespace strata::train
