#pragma once

#include "strata/train/step_summary.hpp"

namespace strata::train {

/// Lets SIGTERM, SIGINT and SIGUSR1 ask the run to stop after the step at hand. A second SIGINT
/// ends the process at once.
void install_stop_signals();

/// Whether such a signal has come.
[[nodiscard]] StopRequest stop_request();

}  // namespace strata::train
