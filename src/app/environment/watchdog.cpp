#include "environment/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/mpi_library.hpp"
#include "strata/core/blocked_signals.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

#include "environment/main_stack.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

/// A thread that takes no signals: the main thread takes all.
template <typename Work>
std::thread thread_without_signals(Work work) {
  const BlockedSignals blocked;
  return std::thread(std::move(work));
}

/// The result of work on files, or `otherwise` after `seconds`, because a file system may not
/// respond. Its thread is never joined, because nothing ends a system call that does not return: it
/// goes on until the process ends. Pre: the work owns what it uses.
bool within(double seconds, bool otherwise, std::function<bool()> work) {
  std::packaged_task<bool()> task(std::move(work));
  std::future<bool> result = task.get_future();
  try {
    thread_without_signals(std::move(task)).detach();
  } catch (const std::system_error&) {
    return otherwise;  // no thread can be started
  }
  return result.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready
             ? result.get()
             : otherwise;
}

}  // namespace

WatchdogSetup watchdog_setup(const config::CommandLine* line, const comm::Activity& activity) {
  constexpr std::string_view kTimeout = "--run.timeout=";
  const comm::Launch launch = comm::launch_in_environment();
  WatchdogSetup setup{.timeout_seconds = config::RunConfig().run.timeout_seconds,
                      .run_directory = {},
                      .rank = launch.rank,
                      .ranks = launch.ranks,
                      .job = hash_text(hash_of(comm::launch_name())).substr(0, 8),
                      .end = [] { std::_Exit(static_cast<int>(ExitCode::kPeer)); }};
  if (line == nullptr) {
    return setup;
  }
  for (const std::string& setting : line->settings()) {
    if (setting.starts_with(kTimeout)) {
      static_cast<void>(parse_double(setting.substr(kTimeout.size()), setup.timeout_seconds));
    }
  }
  if (line->positions().empty()) {
    return setup;
  }
  const Watchdog while_reading(setup, activity);
  try {
    const config::RunConfig config =
        read_run_config(line->positions().front(), line->settings()).config;
    setup.timeout_seconds = config.run.timeout_seconds;
    setup.run_directory = config.run.dir;
  } catch (const std::exception&) {
    // All ranks report it together, once MPI has started.
    setup.run_directory.clear();
  }
  return setup;
}

Watchdog::Watchdog(WatchdogSetup setup, const comm::Activity& activity)
    : setup_(std::move(setup)),
      activity_(activity),
      main_thread_(pthread_self()),
      interval_seconds_(
          std::clamp(setup_.timeout_seconds / 15.0, 0.1 * setup_.second, 5.0 * setup_.second)),
      heartbeats_(setup_.run_directory, setup_.job, setup_.rank, setup_.ranks) {
  if (setup_.ranks < 2) {
    return;
  }
  pthread_getcpuclockid(main_thread_, &main_clock_);
  prepare_main_stack();
  try {
    if (!setup_.run_directory.empty()) {
      file_thread_ = thread_without_signals([this] { exchange_heartbeats(); });
    }
    thread_ = thread_without_signals([this] { watch(); });
  } catch (const std::exception&) {
    end_threads();
    throw;
  }
}

Watchdog::~Watchdog() {
  end_threads();
}

void Watchdog::end_threads() {
  {
    const std::scoped_lock lock(mutex_);
    state_ = State::kEnded;
  }
  ended_.notify_all();
  for (std::thread* thread : {&thread_, &file_thread_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
}

bool Watchdog::ends_within(double seconds) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds),
                         [&] { return state_ == State::kEnded; });
}

void Watchdog::exchange_heartbeats() {
  // A job that ends within seconds leaves no trace in its run directory.
  const double first_beat =
      now_seconds() + std::min(5.0 * setup_.second, setup_.timeout_seconds / 3.0);
  while (!ends_within(interval_seconds_)) {
    if (now_seconds() > first_beat) {
      heartbeats_.write(state_text(activity_));
    }
    if (reports_ || wait_state().seconds > setup_.timeout_seconds / 4.0) {
      heartbeats_.look_at_peers();
    } else {
      heartbeats_.stop_looking();
    }
    exchanged_ = now_seconds();
  }
}

void Watchdog::watch() {
  const double gap_seconds = setup_.second;
  double last = now_seconds();
  // This thread may start late.
  double running_since = last;
  while (!ends_within(interval_seconds_)) {
    const double now = now_seconds();
    if (std::exchange(last, now) + interval_seconds_ + gap_seconds < now) {
      running_since = now;
    }
    look_at_main_thread();
    if (now > running_since + setup_.timeout_seconds && report_if_stuck()) {
      setup_.end();
      return;
    }
  }
}

void Watchdog::look_at_main_thread() {
  // A part of a core: a file system that does not respond wakes its callers now and then.
  constexpr double kLeastLoad = 1e-5;
  constexpr double kNanosecond = 1e-9;
  timespec used{};
  clock_gettime(main_clock_, &used);
  const double seconds =
      static_cast<double>(used.tv_sec) + kNanosecond * static_cast<double>(used.tv_nsec);
  const double now = now_seconds();
  // A wait that is marked has a time of its own: where it ends, the thread has just run.
  const bool is_marked = activity_.wait_state().seconds > 0.0;
  if (is_marked || seconds - main_used_ > kLeastLoad * (now - main_ran_)) {
    main_used_ = seconds;
    main_ran_ = now;
  }
}

comm::WaitState Watchdog::wait_state() const {
  comm::WaitState marked = activity_.wait_state();
  if (marked.seconds > 0.0) {
    return marked;
  }
  return {.kind = comm::WaitKind::kFiles,
          .what = "return from a system call, usually on a file",
          .seconds = now_seconds() - main_ran_};
}

std::string Watchdog::missing_ranks() const {
  constexpr double kIntervals = 4.0;
  const std::string text =
      heartbeats_.silent_ranks(std::max(0.8 * setup_.second, kIntervals * interval_seconds_));
  return text.empty() ? heartbeats_.idle_rank() : text;
}

bool Watchdog::report_if_stuck() {
  // Within this time the main thread reports its own timeouts.
  const double grace = setup_.second;
  const double timeout = setup_.timeout_seconds;
  const comm::WaitState wait = wait_state();
  if (wait.seconds < timeout + grace) {
    return false;
  }
  // The main thread may wait longer, because a save takes long; but not for a rank that is gone.
  const bool files_hang = file_thread_.joinable() && now_seconds() > exchanged_ + timeout;
  const bool too_long =
      wait.kind == comm::WaitKind::kLibraryCall ||
      (wait.kind == comm::WaitKind::kFiles && wait.seconds > activity_.file_seconds() + grace);
  if (!too_long && !files_hang && heartbeats_.silent_ranks(timeout / 2.0).empty()) {
    return false;
  }
  report_timeout(
      fmt::format("timed out after {:.0f} s waiting to {}{}. Submit the job again with "
                  "--run.resume=auto; run.timeout sets the limit",
                  wait.seconds, wait.what,
                  files_hang ? fmt::format(", and the file system of {} does not respond",
                                           setup_.run_directory.string())
                             : ""));
  return true;
}

void Watchdog::report_timeout(const std::string& message) {
  constexpr double kClaimSeconds = 0.5;
  // So long the others, whose waits end soon, have for their reports.
  const std::chrono::duration<double> others(setup_.second);
  reports_ = true;
  std::string missing = missing_ranks();
  // Another rank may know more, and so may this one after further looks.
  for (const double end = now_seconds() + 1.5 * others.count();
       missing.empty() && now_seconds() < end;) {
    std::this_thread::sleep_for(others / 10);
    missing = missing_ranks();
  }
  const bool first =
      setup_.run_directory.empty() || within(kClaimSeconds, true, [claim = heartbeats_.claim()] {
        return Heartbeats::first_to_report(claim);
      });
  if (first) {
    print_error(
        fmt::format("strata: rank {}: {}\n", setup_.rank, printable_lines(message + missing)));
  }
  const auto printed = std::chrono::steady_clock::now();
  write_report(message + missing);
  if (first) {
    std::this_thread::sleep_until(printed + others);
  }
}

void Watchdog::write_report(const std::string& message) const {
  if (setup_.run_directory.empty() || setup_.ranks < 2) {
    return;
  }
  constexpr double kSeconds = 1.0;
  const std::filesystem::path path =
      setup_.run_directory / fmt::format("report-rank-{}.txt", setup_.rank);
  within(kSeconds, false, [path, text = report_text(message), main = main_thread_] {
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    std::filesystem::remove(path, ignored);
    std::ofstream file(path);
    // The launcher may end this process before the stack is there.
    file << text << std::flush;
    file << "\nstack of the main thread:\n" << main_stack(main);
    return true;
  });
}

std::string Watchdog::report_text(const std::string& message) const {
  std::string text =
      fmt::format("rank {} on {}, process {}: {}\n{}\n\noperations, oldest first:\n", setup_.rank,
                  host_name(), getpid(), message, state_text(activity_));
  const std::int64_t operations = activity_.operations();
  for (std::int64_t i = std::max<std::int64_t>(0, operations - comm::Activity::kKept);
       i < operations; ++i) {
    const comm::OperationRecord one = activity_.operation(i);
    const std::string action = *one.action == '\0' ? ""
                                                   : fmt::format(", during {} of microbatch {}",
                                                                 one.action, one.microbatch);
    text += fmt::format("  {} {} of the {}{}, {} bytes{}\n", one.kind, one.number, one.group,
                        one.peer < 0 ? "" : fmt::format(", rank {} there", one.peer), one.bytes,
                        action);
  }
  return text;
}

}  // namespace strata::app
