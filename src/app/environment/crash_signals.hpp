#pragma once

#include <cstdint>

#include "strata/comm/activity.hpp"

namespace strata::app {

/// Installs handlers for the signals of a crash. Each prints one line that names rank and phase;
/// the handlers that were there before then do their work. An unreadable page of a mapped file ends
/// the process with exit code 3 and a line that names the file. Call it again after MPI_Init, which
/// installs handlers too. `activity`: of this rank, or null; it must outlive the process's use of
/// signals or a later call.
void install_crash_signals(std::int64_t rank, const comm::Activity* activity);

}  // namespace strata::app
