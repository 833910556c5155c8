#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>

#include "strata/comm/activity.hpp"

#include "config/command_line.hpp"

namespace strata::app {

/// What a watchdog knows before MPI starts.
struct WatchdogSetup {
  /// run.timeout; its default where the config cannot be read.
  double timeout_seconds = 0.0;
  /// run.dir; empty where there is none, and then no heartbeats.
  std::filesystem::path run_directory;
  /// From the launcher's environment: 0 of 1 without a launcher.
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  /// Distinguishes the jobs that use one run directory.
  std::string job;
};

/// Reads a command's config and the launcher's environment. Throws nothing: the command itself
/// reports a bad config.
[[nodiscard]] WatchdogSetup watchdog_setup(Arguments arguments);

/// A thread that watches the main thread. It writes a heartbeat file every few seconds. Where the
/// main thread waits for long, it reads the heartbeats of the other ranks; where a rank has stopped
/// or MPI blocks, it reports and ends the process after the timeout. It makes no MPI calls.
class Watchdog {
 public:
  Watchdog(WatchdogSetup setup, const comm::Activity& activity);
  /// Stops the thread and deletes the heartbeat.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Sentences about the ranks that do not respond, as in ". Rank 1 ..."; where all respond, about
  /// those that wait for nobody. Empty where none is known.
  [[nodiscard]] std::string missing_ranks();
  /// Writes what this rank did last into run.dir/report-rank-N.txt.
  void write_report(const std::string& message) const;

 private:
  /// What is known of another rank.
  struct Peer {
    std::string heartbeat;
    double changed_seconds = 0.0;
  };

  void watch();
  void beat();
  /// Reads the heartbeats. Pre: holds the mutex.
  void look_at_peers();
  void end_if_stuck(const comm::WaitState& wait);
  /// Sentences about the ranks without a heartbeat for this long. Pre: holds the mutex.
  [[nodiscard]] std::string silent_ranks(double seconds) const;
  [[nodiscard]] std::filesystem::path heartbeat_of(std::int64_t rank) const;
  [[nodiscard]] std::string state_text() const;

  WatchdogSetup setup_;
  const comm::Activity& activity_;
  pthread_t main_thread_;
  double interval_seconds_;
  std::int64_t beats_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  enum class State { kWatching, kEnded } state_ = State::kWatching;
  std::vector<Peer> peers_;
  double looking_since_ = 0.0;
  double looked_ = 0.0;
  /// When this process last continued after it had not run for some time.
  double running_since_ = 0.0;
  std::thread thread_;
};

}  // namespace strata::app
