#pragma once

#include <csignal>

namespace strata {

/// Blocks signals in the threads that are started while it lives, so that the main thread takes
/// stop requests. Signals of crashes stay unblocked: their handler reports the crash.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace strata
