#include "strata/train/stop_signal.hpp"

#include <csignal>
#include <initializer_list>

namespace strata::train {
namespace {

// A signal handler can only access global state.
volatile std::sig_atomic_t stop_flag = 0;

extern "C" void on_stop_signal(int signal) {
  if (signal == SIGINT && stop_flag != 0) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  stop_flag = 1;
}

}  // namespace

void install_stop_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

StopRequest stop_request() {
  return stop_flag != 0 ? StopRequest::kStop : StopRequest::kNone;
}

}  // namespace strata::train
