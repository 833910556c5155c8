#include "strata/train/stop_signal.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <initializer_list>

#include "strata/core/error.hpp"

namespace strata::train {
namespace {

// A signal handler can only access global state.
volatile std::sig_atomic_t stop_flag = 0;
/// When the first SIGTERM and the first SIGINT arrived, in nanoseconds; 0: not yet.
std::atomic<std::int64_t> first_term = 0;
std::atomic<std::int64_t> first_int = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

extern "C" void on_stop_signal(int signal) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  stop_flag = 1;
  if (signal != SIGTERM && signal != SIGINT) {
    return;
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t arrived = now.tv_sec * kSecond + now.tv_nsec;
  std::int64_t first = 0;
  if (!(signal == SIGTERM ? first_term : first_int).compare_exchange_strong(first, arrived) &&
      arrived - first >= kSecond) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void install_stop_signals() {
  const auto install = [](int signal) {
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  };
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    install(signal);
  }
  for (const int signal : {SIGHUP, SIGUSR2, SIGALRM, SIGXCPU, SIGPWR}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL) {
      install(signal);
    }
  }
}

StopRequest stop_request() {
  return stop_flag != 0 ? StopRequest::kStop : StopRequest::kNone;
}

void end_setup_on_stop_request() {
  if (stop_request() == StopRequest::kStop) {
    fail(ExitCode::kStoppedEarly,
         "stopped on request while setting up, before a step was trained; checkpoints are as they "
         "were. Submit the job again with --run.resume=auto");
  }
}

}  // namespace strata::train
