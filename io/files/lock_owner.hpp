#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "strata/io/directory_lock.hpp"

namespace strata::io {

/// The contents of a lock file.
struct LockOwner {
  /// Offset and digits of the heartbeat, which is rewritten in place.
  static constexpr std::int64_t kBeatOffset = 12;
  static constexpr int kBeatDigits = 12;

  std::int64_t heartbeat = 0;
  std::string nonce;
  std::string host;
  std::int64_t pid = 0;
  std::int64_t process_start = 0;  ///< in clock ticks after the boot, as in /proc/PID/stat
  std::string boot;                ///< /proc/sys/kernel/random/boot_id
  std::string pid_namespace;       ///< process ids of containers may mean other processes
  std::string scheduler;           ///< slurm, pbs; empty outside of a job
  std::string cluster;             ///< a job's id is unique within its cluster
  std::string job;
  std::int64_t restarts = 0;  ///< how often Slurm requeued the job
  std::string started;        ///< time of day
};

/// The calling process, with a new nonce.
[[nodiscard]] LockOwner this_process();

[[nodiscard]] std::string text_of(const LockOwner& owner);
/// Unknown lines are skipped, missing ones leave their members empty.
[[nodiscard]] LockOwner lock_owner_of(const std::string& text);

/// Host, process, job and start time, for messages; only printable characters.
[[nodiscard]] std::string description_of(const LockOwner& owner);

struct OwnerVerdict {
  OwnerState state = OwnerState::kUnknown;
  std::string reason;
};

/// Whether `owner` still runs, as far as `self` can prove: by the process table of the same node,
/// its boot id, the restarts of the same Slurm job, or squeue.
[[nodiscard]] OwnerVerdict judge(const LockOwner& owner, const LockOwner& self);

/// The calling process and a new nonce, as a part of a file's name.
[[nodiscard]] std::string owner_name();
/// Whether the process with this owner_name() ran on this node and has ended.
[[nodiscard]] bool has_ended(std::string_view owner_name);

}  // namespace strata::io
