#include "strata/comm/activity.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/clock.hpp"

namespace strata::comm {

int Activity::add_group(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  // Later groups share the last name.
  group_count_ = std::min(group_count_ + 1, kMostGroups);
  groups_[group_count_ - 1] = name;
  return static_cast<int>(group_count_ - 1);
}

void Activity::record(int group, const char* kind, std::int64_t number, std::int64_t peer,
                      std::int64_t bytes) {
  const std::int64_t index = operations_.load(std::memory_order_relaxed);
  Slot& slot = slots_[static_cast<std::size_t>(index % kKept)];
  slot.group.store(group, std::memory_order_relaxed);
  slot.kind.store(kind, std::memory_order_relaxed);
  slot.number.store(number, std::memory_order_relaxed);
  slot.peer.store(peer, std::memory_order_relaxed);
  slot.bytes.store(bytes, std::memory_order_relaxed);
  slot.action.store(action_, std::memory_order_relaxed);
  slot.microbatch.store(microbatch_, std::memory_order_relaxed);
  operations_.store(index + 1, std::memory_order_release);
}

OperationRecord Activity::operation(std::int64_t index) const {
  const Slot& slot = slots_[static_cast<std::size_t>(index % kKept)];
  const std::scoped_lock lock(mutex_);
  return {.group = groups_[static_cast<std::size_t>(slot.group.load())],
          .kind = slot.kind,
          .number = slot.number,
          .peer = slot.peer,
          .bytes = slot.bytes,
          .action = slot.action,
          .microbatch = slot.microbatch};
}

bool Activity::begin_wait(WaitKind kind, std::string what) {
  const std::scoped_lock lock(mutex_);
  if (waiting_since_ != 0.0) {
    return false;
  }
  wait_kind_ = kind;
  waiting_for_ = std::move(what);
  waiting_since_ = now_seconds();
  return true;
}

void Activity::end_wait() {
  const std::scoped_lock lock(mutex_);
  waiting_since_ = 0.0;
}

WaitState Activity::wait_state() const {
  const std::scoped_lock lock(mutex_);
  return waiting_since_ == 0.0 ? WaitState()
                               : WaitState{.kind = wait_kind_,
                                           .what = waiting_for_,
                                           .seconds = now_seconds() - waiting_since_};
}

}  // namespace strata::comm
