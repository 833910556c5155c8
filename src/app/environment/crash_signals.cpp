#include "environment/crash_signals.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include <execinfo.h>
#include <fmt/format.h>
#include <ucontext.h>
#include <unistd.h>

#include "strata/core/environment.hpp"
#include "strata/core/error.hpp"
#include "strata/core/log.hpp"
#include "strata/core/memory.hpp"
#include "strata/io/mapped_files.hpp"

namespace strata::app {
namespace {

/// The first five are crashes. The others end a process at once, as its user or a site wants it.
constexpr std::size_t kCrashes = 5;
constexpr std::array kSignals{std::pair{SIGBUS, "SIGBUS"},       std::pair{SIGSEGV, "SIGSEGV"},
                              std::pair{SIGABRT, "SIGABRT"},     std::pair{SIGFPE, "SIGFPE"},
                              std::pair{SIGILL, "SIGILL"},       std::pair{SIGQUIT, "SIGQUIT"},
                              std::pair{SIGTRAP, "SIGTRAP"},     std::pair{SIGSYS, "SIGSYS"},
                              std::pair{SIGIO, "SIGIO"},         std::pair{SIGPROF, "SIGPROF"},
                              std::pair{SIGVTALRM, "SIGVTALRM"}, std::pair{SIGSTKFLT, "SIGSTKFLT"}};

constexpr unsigned kHandlerSeconds = 10;

// A signal handler can only access global state.
std::atomic<std::int64_t> own_rank{0};
std::atomic<const comm::Activity*> own_activity{nullptr};
std::array<struct sigaction, kSignals.size()> earlier;
constexpr int kNoCode = -1;
std::atomic<int> code_of_end{kNoCode};
std::atomic<bool> exit_is_own{false};
std::atomic<int> crash{0};
std::atomic<bool> waits_for_debugger{false};
// The main thread's stack may be full.
alignas(16) std::array<char, 1 << 16> handler_stack;

/// A line that is built and written without allocation.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const std::size_t length = std::min(text.size(), text_.size() - length_);
    std::memcpy(text_.data() + length_, text.data(), length);
    length_ += length;
    return *this;
  }
  Line& operator<<(std::int64_t number) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    return *this << std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }
  void write() const { static_cast<void>(::write(STDERR_FILENO, text_.data(), length_) != 0); }

 private:
  std::array<char, 1024> text_{};
  std::size_t length_ = 0;
};

/// Ends the process with a line that takes no memory.
[[noreturn]] void end_out_of_memory(std::string_view how, std::int64_t number) {
  const comm::Activity* const activity = own_activity;
  Line line;
  line << "strata: rank " << own_rank.load() << ": out of memory in phase "
       << name_of(activity != nullptr ? activity->phase() : comm::Phase::kStart) << " (" << how
       << number << "); raise the limit (ulimit -v) or ask the job for more memory\n";
  line.write();
  _exit(static_cast<int>(ExitCode::kPeer));
}

/// For a process that a library ended: where memory is short, that is why.
void end_if_memory_is_short(std::string_view how, std::int64_t number) {
  if (memory_is_short()) {
    end_out_of_memory(how, number);
  }
}

extern "C" void on_exit_of_process(int code, void* /*unused*/) {
  if (!exit_is_own) {
    end_if_memory_is_short("exit code ", code);
  }
}

/// Lets the crash's signal end the process.
extern "C" void on_late_handler(int /*signal*/) {
  Line line;
  line << "strata: rank " << own_rank.load() << ": a handler of the crash did not end within "
       << kHandlerSeconds << " s; the process is ended\n";
  line.write();
  const int signal = crash;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(signal);
}

/// This handler, or a library's after it, may wait forever for a lock that the thread held when it
/// crashed, as that of the allocator. `context`: of the thread.
void limit_handlers(int signal, void* context) {
  if (waits_for_debugger) {
    return;
  }
  crash = signal;
  struct sigaction action {};
  action.sa_handler = on_late_handler;
  sigaction(SIGALRM, &action, nullptr);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  // The mask while the library's handler runs.
  sigdelset(&static_cast<ucontext_t*>(context)->uc_sigmask, SIGALRM);
  alarm(kHandlerSeconds);
}

extern "C" void on_crash_signal(int signal, siginfo_t* info, void* context) {
  const char* const file = signal == SIGBUS ? io::mapped_file_at(info->si_addr) : nullptr;
  Line line;
  line << "strata: rank " << own_rank.load() << ": ";
  if (file != nullptr) {
    line << file
         << " became shorter or cannot be read while it is in use; restore it and submit the job "
            "again with --run.resume=auto\n";
    line.write();
    _exit(static_cast<int>(ExitCode::kData));
  }
  std::size_t i = 0;
  while (kSignals[i].first != signal) {
    ++i;
  }
  const bool is_crash = i < kCrashes;
  const comm::Activity* const activity = own_activity;
  const int code = code_of_end;
  const bool is_done = is_crash && code != kNoCode && activity != nullptr &&
                       activity->phase() == comm::Phase::kEnd && !waits_for_debugger;
  if (is_crash) {
    limit_handlers(signal, context);
    end_if_memory_is_short("signal ", signal);
  }
  line << (is_crash ? "crashed with " : "ended at once by ") << kSignals[i].second;
  sigaction(signal, &earlier[i], nullptr);
  if (activity != nullptr) {
    line << " in phase " << name_of(activity->phase());
    if (activity->step() > 0) {
      line << ", step " << activity->step();
    }
  }
  if (is_done) {
    line << " (MPI_Finalize), probably by an error in the MPI library. The command is complete, "
         << "with exit code " << code
         << ", also if the launcher reports that a process exited improperly\n";
  } else {
    line << (is_crash ? "; this is an error in strata or in a library: please report it with the "
                        "lines above and below\n"
                      : "; SIGUSR1 or SIGTERM lets a run write a checkpoint first\n");
  }
  line.write();
  if (is_done || (is_crash && earlier[i].sa_handler == SIG_DFL)) {
    // MPI, where it runs, has a handler that prints the stack.
    std::array<void*, 64> frames{};
    const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
    backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  }
  if (is_done) {
    _exit(code);
  }
  // The earlier handler gets the signal again, once this one returns.
  raise(signal);
}

/// Ends the process where an exception leaves a thread or a destructor: for want of memory or
/// threads with its message, else by a crash.
[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr current = std::current_exception()) {
      std::rethrow_exception(current);
    }
  } catch (const std::exception& error) {
    try {
      const Failure failure = failure_of(error);
      print_error(fmt::format("strata: rank {}: {}\n", own_rank.load(), failure.message));
    } catch (const std::exception&) {
      // No memory for its message either.
      end_out_of_memory("bytes refused: ", refused_bytes());
    }
    if (is_exhaustion(error)) {
      _exit(static_cast<int>(ExitCode::kPeer));
    }
  } catch (...) {
    // None of ours.
  }
  std::abort();
}

}  // namespace

void set_code_of_end(std::optional<ExitCode> code) {
  code_of_end = code ? static_cast<int>(*code) : kNoCode;
}

void allow_exit() {
  exit_is_own = true;
}

void install_crash_signals(std::int64_t rank, const comm::Activity* activity) {
  own_rank = rank;
  own_activity = activity;
  const std::string of_ucx = environment("UCX_HANDLE_ERRORS");
  waits_for_debugger =
      of_ucx.find("freeze") != std::string::npos || of_ucx.find("debug") != std::string::npos;
  // The first call loads a library, which a handler must not do.
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);
  std::set_terminate(&on_terminate);
  static const int kStatus = ::on_exit(&on_exit_of_process, nullptr);
  static_cast<void>(kStatus);
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  sigaltstack(&stack, nullptr);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_sigaction = on_crash_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    struct sigaction before {};
    sigaction(kSignals[i].first, nullptr, &before);
    const bool is_own =
        (before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction == on_crash_signal;
    // A profiler may use the others, and a shell lets what runs in the background ignore SIGQUIT.
    if (!is_own && (i < kCrashes || before.sa_handler == SIG_DFL)) {
      sigaction(kSignals[i].first, &action, nullptr);
      earlier[i] = before;
    }
  }
}

}  // namespace strata::app
