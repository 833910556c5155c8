#pragma once

#include <cstdint>
#include <optional>

#include "strata/comm/activity.hpp"
#include "strata/core/error.hpp"

namespace strata::app {

/// Installs handlers for the signals of a crash, and for SIGQUIT and others that end a process if
/// nothing else is set for them. Each prints one line that names rank and phase; the handlers that
/// were there before then do their work, for at most 10 s after a crash unless UCX_HANDLE_ERRORS
/// asks for a debugger, or the stack is printed. An unreadable page of a mapped file ends the
/// process with exit code 3 and a line that names the file. A crash, or an exit before
/// allow_exit(), where memory is short ends it with exit code 5, and so does an exception of too
/// little memory or threads that leaves a thread. Call it again after MPI_Init, which installs
/// handlers too. `activity`: of this rank, or null; it must outlive the process's use of signals or
/// a later call.
void install_crash_signals(std::int64_t rank, const comm::Activity* activity);

/// While MPI is finalized: a crash in Phase::kEnd ends the process with this code, its command's.
/// All ranks have done their work then, and a job that stopped to be continued (75) must not count
/// as failed. Source of such crashes: https://github.com/open-mpi/ompi/issues/10117
void set_code_of_end(std::optional<ExitCode> code);

/// From now on the process may exit.
void allow_exit();

}  // namespace strata::app
