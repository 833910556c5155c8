#include "environment/main_stack.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <execinfo.h>

namespace strata::app {
namespace {

// A signal handler can only access global state.
std::array<void*, 64> frames;
std::atomic<int> frame_count{0};

int stack_signal() {
  return SIGRTMIN + 3;
}

extern "C" void on_stack_signal(int /*signal*/) {
  frame_count = backtrace(frames.data(), static_cast<int>(frames.size()));
}

}  // namespace

void prepare_main_stack() {
  // The first call loads a library, which a handler must not do.
  backtrace(frames.data(), 1);
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::string main_stack(pthread_t thread) {
  frame_count = 0;
  pthread_kill(thread, stack_signal());
  for (int i = 0; i < 100 && frame_count == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const int count = frame_count;
  char** const names = backtrace_symbols(frames.data(), count);
  std::string text;
  for (int i = 0; i < count && names != nullptr; ++i) {
    text += std::string("  ") + names[i] + "\n";
  }
  std::free(names);
  return text.empty() ? "  none: the thread does not respond within 1 s\n" : text;
}

}  // namespace strata::app
