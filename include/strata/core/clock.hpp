#pragma once

#include <chrono>

namespace strata {

/// Seconds of the steady clock, for measuring how long something takes.
[[nodiscard]] inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace strata
