#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "strata/comm/activity.hpp"
#include "strata/core/clock.hpp"

namespace strata::app {

/// What a rank does now, as in "training, step 7, last operation send 12 of the data group, not
/// waiting".
[[nodiscard]] std::string state_text(const comm::Activity& activity);

/// The heartbeat files of a job's ranks in its run directory. One thread reads and writes them and
/// may block on the file system; the questions about ranks take no file operations.
class Heartbeats {
 public:
  /// `directory`: run.dir; empty: no heartbeats. `job` distinguishes the jobs that use it.
  Heartbeats(std::filesystem::path directory, std::string job, std::int64_t rank,
             std::int64_t ranks, double (*clock)() = now_seconds);
  /// Deletes this rank's file.
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  void write(const std::string& state);
  /// Reads the other ranks' files: at most 200 files a second, because all ranks may read.
  void look_at_peers();
  /// Forgets what the looks have shown.
  void stop_looking();
  /// The file by which the first rank of the job that reports is known.
  [[nodiscard]] std::filesystem::path claim() const;
  /// True for the first rank that asks, and where the file system does not tell.
  [[nodiscard]] static bool first_to_report(const std::filesystem::path& claim);

  /// Sentences about the ranks whose file did not change for this long, as in ". Rank 1 ...".
  [[nodiscard]] std::string silent_ranks(double seconds) const;
  /// A sentence about a rank that waits for nobody; empty where none is known.
  [[nodiscard]] std::string idle_rank() const;

 private:
  struct Peer {
    std::string heartbeat;
    double changed_seconds = 0.0;
  };

  [[nodiscard]] std::filesystem::path file_of(std::int64_t rank) const;

  std::filesystem::path run_directory_;
  std::string job_;
  std::int64_t rank_;
  double (*clock_)();
  std::int64_t beats_ = 0;
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  double looking_since_ = 0.0;
  double looked_ = 0.0;
};

}  // namespace strata::app
