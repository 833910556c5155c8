#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <pthread.h>

#include "strata/comm/activity.hpp"
#include "strata/config/command.hpp"
#include "strata/core/clock.hpp"

#include "environment/heartbeats.hpp"

namespace strata::app {

/// What a watchdog knows before MPI starts.
struct WatchdogSetup {
  /// run.timeout; its default where the config cannot be read.
  double timeout_seconds = 0.0;
  /// run.dir; empty where there is none, and then no heartbeats.
  std::filesystem::path run_directory;
  /// comm::Launch.
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  /// Distinguishes the jobs that use one run directory.
  std::string job;
  /// Ends the process after the report.
  std::function<void()> end;
  /// The unit of all times but the timeout: shorter in tests.
  double second = 1.0;
};

/// Reads a command's config, under a watchdog, and the launcher's environment. `line` is null where
/// it is refused. Throws nothing: the command itself reports a bad config.
[[nodiscard]] WatchdogSetup watchdog_setup(const config::CommandLine* line,
                                           const comm::Activity& activity);

/// A thread that watches the main thread: where a rank has stopped, a call of MPI or NCCL blocks,
/// or the main thread stands still, it reports and ends the process after the timeout. The main
/// thread stands still where it uses no time of a core, as in any call to a file system that does
/// not respond: waits for messages use some. The watchdog makes no MPI calls, and a second thread
/// exchanges the heartbeats, so that it does not block on a file system.
class Watchdog {
 public:
  Watchdog(WatchdogSetup setup, const comm::Activity& activity);
  /// Stops the threads and deletes the heartbeat.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Sentences about the ranks that do not respond, as in ". Rank 1 ..."; where all respond, about
  /// one that waits for nobody. Empty where none is known.
  [[nodiscard]] std::string missing_ranks() const;
  /// Prints that this rank timed out, with the ranks that are missing, unless another rank of the
  /// job has printed such a line; writes the report. Returns within some seconds. Pre: the process
  /// ends soon.
  void report_timeout(const std::string& message);
  /// Writes what this rank did last into run.dir/report-rank-N.txt. After a second, because a file
  /// system may not respond, a thread of its own goes on, also where the watchdog is destroyed.
  /// Pre: the process ends soon.
  void write_report(const std::string& message) const;

 private:
  void end_threads();
  void watch();
  void exchange_heartbeats();
  [[nodiscard]] bool ends_within(double seconds);
  void look_at_main_thread();
  /// What the main thread waits for, also in a call that it did not mark.
  [[nodiscard]] comm::WaitState wait_state() const;
  /// Reports that the main thread waits for too long; false where it does not.
  [[nodiscard]] bool report_if_stuck();
  [[nodiscard]] std::string report_text(const std::string& message) const;

  WatchdogSetup setup_;
  const comm::Activity& activity_;
  pthread_t main_thread_;
  clockid_t main_clock_{};
  double main_used_ = 0.0;                        ///< of a core, when it ran last
  std::atomic<double> main_ran_ = now_seconds();  ///< when it was seen to run last
  double interval_seconds_;
  Heartbeats heartbeats_;
  std::atomic<double> exchanged_ = now_seconds();  ///< the last exchange of heartbeats
  std::atomic<bool> reports_ = false;              ///< looks at peers until the process ends
  std::mutex mutex_;
  std::condition_variable ended_;
  enum class State { kWatching, kEnded } state_ = State::kWatching;
  std::thread thread_;
  std::thread file_thread_;
};

}  // namespace strata::app
