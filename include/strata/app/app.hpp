#pragma once

#include "strata/train/setup.hpp"

namespace strata::app {

/// Runs the command that the arguments name, and reports errors. `hooks`: of its training.
/// Returns: the exit code.
int run(int argc, char** argv, const train::TrainerHooks& hooks = {});

}  // namespace strata::app
