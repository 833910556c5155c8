#pragma once

#include <string>

#include <pthread.h>

namespace strata::app {

/// Installs the signal handler of main_stack().
void prepare_main_stack();

/// The stack of another thread of this process, a line per call; says so where it does not respond.
/// Pre: prepare_main_stack() was called.
[[nodiscard]] std::string main_stack(pthread_t thread);

}  // namespace strata::app
