#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "strata/core/log.hpp"

namespace strata::io {

/// 16 random hexadecimal digits, for names that no other process chooses.
[[nodiscard]] std::string make_nonce();

/// The name, in its directory, and the times of a lock.
struct LockOptions {
  std::string name = "run.lock";
  /// The setting that a refused user may change, for messages.
  std::string setting = "run.dir";
  /// What the lock is of, for messages; empty: its directory.
  std::string subject = {};
  /// The owner rewrites its counter at this interval.
  double heartbeat_seconds = 5.0;
  /// An owner whose counter does not advance for this time is gone.
  double stale_seconds = 60.0;
  /// Called about once a second while a contender watches a heartbeat; may throw to give up.
  std::function<void()> while_watching = [] {};
};

/// A lock file that one process at a time holds, on local and network file systems (NFS, Lustre):
/// link(2) creates it with its contents, flock is not used. A thread advances the file's heartbeat.
/// The lock of an owner that is gone is taken over: at once where the process is dead, the node has
/// rebooted or Slurm has ended the job; else after LockOptions::stale_seconds without a heartbeat.
/// Format: docs/formats.md.
class DirectoryLock {
 public:
  /// Takes the lock; waits only to watch the heartbeat of an owner on another node.
  /// Pre: `directory` exists.
  /// Throws: Error(kUsage) naming the owner where another process holds the lock, or where the file
  /// cannot be written; FileSystemError(kUsage) where it cannot be read.
  DirectoryLock(const std::filesystem::path& directory, const LockOptions& options, Log& log);
  /// Removes the lock if this process still holds it.
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  /// Reads the lock file. Throws: Error(kUsage) where another process has taken the lock over,
  /// which happens to a process that stood still for LockOptions::stale_seconds, or where the file
  /// was deleted.
  void require_held() const;

  [[nodiscard]] const std::string& nonce() const { return nonce_; }

  /// Whether the calling process, on any node, sees the lock with this nonce in `directory`; tries
  /// again until the timeout, because NFS clients cache directories.
  [[nodiscard]] static bool is_visible(const std::filesystem::path& directory,
                                       const LockOptions& options, const std::string& nonce,
                                       double timeout_seconds);

 private:
  class Heartbeat;

  std::filesystem::path path_;
  LockOptions options_;
  std::string nonce_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

/// Whether the owner of a lock still runs.
enum class OwnerState { kAlive, kGone, kUnknown };

/// A lock as a process sees it that does not want it.
struct SeenLock {
  std::string owner;  ///< host, process, job and start time
  std::string beat;   ///< changes with each heartbeat and with each owner
  /// Since the last heartbeat, by this node's clock and the file's time of change.
  double age_seconds = 0.0;
  /// As far as this node's process table and boot id tell; no scheduler is asked.
  OwnerState state = OwnerState::kUnknown;
};

/// Looks at the lock of a directory; nothing where there is none. Throws: Error(kData) where
/// something else has its name, FileSystemError(kData) where it cannot be read.
[[nodiscard]] std::optional<SeenLock> look_at_lock(const std::filesystem::path& directory,
                                                   const LockOptions& options = {});

}  // namespace strata::io
