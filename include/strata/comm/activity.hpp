#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "strata/core/enum_names.hpp"

namespace strata::comm {

enum class Phase { kStart, kSetup, kTraining, kSave, kEvaluation, kEnd };

constexpr auto enum_names(Phase) {
  return names_in_order("start", "set-up", "training", "save", "evaluation", "end");
}

/// An operation that a rank has begun.
struct OperationRecord {
  std::string group;        ///< as in "data group"
  const char* kind = "";    ///< as in "all-gather"; a literal
  std::int64_t number = 0;  ///< among the operations of this kind of call in the group
  std::int64_t peer = -1;   ///< of a message; -1 for a collective
  std::int64_t bytes = 0;
  const char* action = "";      ///< of the schedule, during which it began; "" outside
  std::int64_t microbatch = 0;  ///< of that action
};

/// Who ends a wait that takes too long.
enum class WaitKind {
  kMessage,      ///< the main thread itself
  kLibraryCall,  ///< only the watchdog: MPI or NCCL blocks the main thread
  kFiles         ///< only the watchdog, after file_seconds() if the timeout is shorter
};

/// What the main thread waits for.
struct WaitState {
  WaitKind kind = WaitKind::kMessage;
  std::string what;
  double seconds = 0.0;  ///< so far; 0 where it does not wait
};

/// What a rank's main thread does: its phase, its last operations and what it waits for. The main
/// thread writes it without locks on the way of a message; a watchdog reads it.
class Activity {
 public:
  void enter(Phase phase) { phase_ = phase; }
  [[nodiscard]] Phase phase() const { return phase_; }
  void set_step(std::int64_t step) { step_ = step; }
  [[nodiscard]] std::int64_t step() const { return step_; }

  /// The action of the schedule that the main thread begins, a literal; "" after the last one.
  void set_action(const char* action, std::int64_t microbatch) {
    action_ = action;
    microbatch_ = microbatch;
  }

  /// Returns the number of a new group, for record().
  [[nodiscard]] int add_group(std::string_view name);
  /// Records the begin of an operation. `kind` is a literal.
  void record(int group, const char* kind, std::int64_t number, std::int64_t peer,
              std::int64_t bytes);
  /// Operations begun so far.
  [[nodiscard]] std::int64_t operations() const { return operations_; }
  /// Operation `index` of operations(), of which the last kKept are there. Where the main thread
  /// overwrites it meanwhile, the record may mix two operations.
  [[nodiscard]] OperationRecord operation(std::int64_t index) const;

  /// The main thread begins to wait, as in "complete the barrier with all ranks of the world".
  /// Returns: false where it waits already, for something that it named.
  [[nodiscard]] bool begin_wait(WaitKind kind, std::string what);
  void end_wait();
  [[nodiscard]] WaitState wait_state() const;

  /// How long the other ranks wait for this one while it reads and writes files.
  void set_file_seconds(double seconds) { file_seconds_ = seconds; }
  [[nodiscard]] double file_seconds() const { return file_seconds_; }

  /// Until when waits sleep between tests, because another process wants the core.
  double sleep_until_seconds = 0.0;
  double sleep_seconds = 50e-6;  ///< each time

  static constexpr std::int64_t kKept = 64;

 private:
  static constexpr std::size_t kMostGroups = 32;

  struct Slot {
    std::atomic<int> group{0};
    std::atomic<const char*> kind{""};
    std::atomic<std::int64_t> number{0};
    std::atomic<std::int64_t> peer{-1};
    std::atomic<std::int64_t> bytes{0};
    std::atomic<const char*> action{""};
    std::atomic<std::int64_t> microbatch{0};
  };

  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<std::int64_t> step_{0};
  std::atomic<double> file_seconds_{0.0};
  const char* action_ = "";  // of the main thread alone
  std::int64_t microbatch_ = 0;
  std::atomic<std::int64_t> operations_{0};
  std::array<Slot, kKept> slots_;
  mutable std::mutex mutex_;
  std::array<std::string, kMostGroups> groups_;
  std::size_t group_count_ = 0;
  WaitKind wait_kind_ = WaitKind::kMessage;
  std::string waiting_for_;
  double waiting_since_ = 0.0;
};

/// Marks a wait of the main thread; `activity` is null where nobody watches.
class WaitMark {
 public:
  WaitMark(Activity* activity, WaitKind kind, std::string what) : activity_(activity) {
    if (activity_ != nullptr && !activity_->begin_wait(kind, std::move(what))) {
      activity_ = nullptr;
    }
  }
  ~WaitMark() {
    if (activity_ != nullptr) {
      activity_->end_wait();
    }
  }
  WaitMark(const WaitMark&) = delete;
  WaitMark& operator=(const WaitMark&) = delete;

 private:
  Activity* activity_;
};

}  // namespace strata::comm
