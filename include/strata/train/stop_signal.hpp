#pragma once

namespace strata::train {

/// Whether a rank, or the run, was requested to stop.
enum class StopRequest { kNone, kStop };

/// Makes SIGTERM, SIGINT and SIGUSR1 request a stop, SIGHUP unless it is ignored, as under nohup,
/// and SIGUSR2, SIGALRM, SIGXCPU and SIGPWR where nothing else is set for them. SIGTERM or SIGINT,
/// sent again a second or more after the first one, kills the process; within that second they
/// count as one request, because Slurm and srun may both deliver it. The others may be repeated.
void install_stop_signals();

/// Whether such a signal has arrived.
[[nodiscard]] StopRequest stop_request();

/// Ends set-up after a stop request: called within comm::agree(), all ranks end together.
/// Throws: Error(kStoppedEarly) where such a signal has arrived.
void end_setup_on_stop_request();

}  // namespace strata::train
