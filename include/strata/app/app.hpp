#pragma once

namespace strata::app {

/// Runs the command that the arguments name, and reports errors. Returns: the exit code.
int run(int argc, char** argv);

}  // namespace strata::app
