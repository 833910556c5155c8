#include "strata/core/blocked_signals.hpp"

#include <initializer_list>

#include <pthread.h>

namespace strata {

BlockedSignals::BlockedSignals() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int crash : {SIGBUS, SIGSEGV, SIGABRT, SIGFPE, SIGILL}) {
    sigdelset(&blocked, crash);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

BlockedSignals::~BlockedSignals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace strata
