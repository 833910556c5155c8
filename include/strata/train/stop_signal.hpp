#pragma once

namespace strata::train {

/// Whether the run was requested to stop.
enum class StopRequest { kNone, kStop };

/// Makes SIGTERM, SIGINT and SIGUSR1 request a stop after the current step. A second SIGINT kills
/// the process.
void install_stop_signals();

/// Whether such a signal has arrived.
[[nodiscard]] StopRequest stop_request();

}  // namespace strata::train
