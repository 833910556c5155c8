#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/agree.hpp"
#include "strata/comm/groups.hpp"
#include "strata/core/log.hpp"
#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/metrics.hpp"

namespace strata::train {

/// Writes a run's checkpoints. A save copies the rank's state into host memory, and a thread writes
/// the copy while training goes on. The thread sends no messages: the trainer's step summary tells
/// all ranks when the threads are done, and the save's next phase begins on all ranks after the
/// same step. At most one save is under way. With checkpoint.background = off a save returns when
/// the checkpoint is committed, and host memory is written in place.
class CheckpointWriter {
 public:
  /// What becomes of a save that fails.
  enum class OnFailure { kWarn, kThrow };

  /// Gives what this rank writes, copied to memory of plan::checkpoint_copy_bytes(); in place where
  /// that is empty.
  using Snapshot = std::function<std::vector<io::TensorSlice>(const device::Buffer& memory)>;

  /// Allocates the memory of the copy, which the plan lists.
  CheckpointWriter(const plan::Plan& plan, const plan::RankPlan& rank, comm::Groups& groups,
                   Snapshot snapshot, RunRecord record, Log& log);
  /// Waits for the thread. The directory of an unfinished save stays for tidy_checkpoints().
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Starts to save the state after `step`, after the save under way, if any, is complete. On rank
  /// 0 `best_step` is the checkpoint that is not to be deleted as expired; -1: none. Pre: no work
  /// under way changes the state. Communication: collective over the world.
  /// Throws: as finish(), for either save.
  void begin(std::int64_t step, OnFailure on_failure, std::int64_t best_step);
  /// Whether this rank's thread is at work.
  [[nodiscard]] bool is_writing() const;
  /// Whether a save is under way; the same on all ranks.
  [[nodiscard]] bool is_saving() const { return phase_ != Phase::kIdle; }
  /// Begins the save's next phase. Pre: is_saving(), and is_writing() was false on all ranks.
  /// Communication: collective over the world. Throws: as finish().
  void advance();
  /// Completes the save under way, if any. Communication: collective over the world.
  /// Throws: AgreedError(kCheckpoint) where a save begun with kThrow fails; AgreedError(kUsage)
  /// where another process has taken over the run directory. Earlier checkpoints remain.
  void finish();

  /// Whether the last save failed; the same on all ranks.
  [[nodiscard]] bool has_failed() const { return failed_; }
  /// The digest over all ranks of what a save would write now. Pre: as begin(), and no save is
  /// under way. Communication: an all-gather over the world.
  [[nodiscard]] Digest state_digest();

  /// On rank 0 the report of the save that was committed last, once.
  [[nodiscard]] std::optional<CheckpointRecord> take_report() { return std::exchange(report_, {}); }

 private:
  enum class Phase {
    kIdle,
    kParts,   ///< every rank's thread writes its part
    kCommit,  ///< rank 0's thread writes the master, commits and deletes expired checkpoints
  };

  /// Waits for the thread.
  [[nodiscard]] std::string result();
  void start_parts();
  void start_commit();
  void end_commit();
  /// Runs a phase; ends the save where the phase fails.
  template <typename Function>
  void attempt(Function&& phase);

  const plan::Plan& plan_;
  comm::Communicator& world_;
  Snapshot snapshot_;
  RunRecord record_;
  Log& log_;
  device::Buffer memory_;
  std::vector<io::TensorSlice> slices_;
  Phase phase_ = Phase::kIdle;
  OnFailure on_failure_ = OnFailure::kWarn;
  bool failed_ = false;
  std::int64_t step_ = -1;
  std::int64_t best_step_ = -1;
  std::filesystem::path directory_;  ///< of the save under way, on rank 0
  /// Of the save under way. Of the thread while it runs: bytes and write_seconds.
  CheckpointRecord save_;
  std::optional<CheckpointRecord> report_;
  /// The thread: gives the part's record, or a warning of the commit.
  std::future<std::string> thread_;
};

}  // namespace strata::train
