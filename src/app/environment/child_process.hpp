#pragma once

#include <functional>
#include <string>
#include <vector>

namespace strata::app {

/// Descriptors that a child writes to, and reads from: -1 for nothing.
struct ChildFiles {
  int output;
  int errors;
  int input = -1;
};

/// Runs a program with its arguments to its end, in a process group of its own, so that Ctrl-C
/// reaches this process alone; it cannot read a terminal. The child ends with this process. A stop
/// request is passed on as USR1 until it ends. `poll` is called often meanwhile, and once after the
/// end. Returns: its exit code, 127 where it cannot be started, 128 + N where signal N ended it.
/// Throws: Error(kPeer) where no process can be started.
[[nodiscard]] int run_child(
    const std::vector<std::string>& words, const ChildFiles& files,
    const std::function<void()>& poll = [] {});

}  // namespace strata::app
