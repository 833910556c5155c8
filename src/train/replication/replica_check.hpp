#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// Finds memory that changed by itself. After a step's update the replicas compare a hash of their
/// weights; before the next update, and before a save, each rank compares its weights and its
/// optimizer state with what they were.
class ReplicaCheck {
 public:
  ReplicaCheck(comm::Groups& groups, RankState& state) : groups_(groups), state_(state) {}

  /// Compares the replicas after the update of `step`. Pre: no message is in flight.
  /// Communication: an all-gather over the world.
  /// Throws: AgreedError(kPeer) that names the rank that differs from the majority, or all
  /// suspects.
  void compare(std::int64_t step);
  /// Whether nothing has changed since compare(); does nothing without it, and the second time for
  /// `Until::kUpdate`. Communication: as compare(). Throws: AgreedError(kPeer) that names the rank.
  enum class Until { kSave, kUpdate };
  void confirm(Until until);

  /// Seconds that the last compare() and the confirmations after it took on this rank.
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] double all_seconds() const { return all_seconds_; }
  [[nodiscard]] std::int64_t comparisons() const { return comparisons_; }

 private:
  struct Hashes {
    std::uint64_t weights = 0;
    std::uint64_t state = 0;
  };

  comm::Groups& groups_;
  RankState& state_;
  std::int64_t step_ = 0;
  std::optional<Hashes> held_;
  double seconds_ = 0.0;
  double all_seconds_ = 0.0;
  std::int64_t comparisons_ = 0;
};

/// Ends the run on all ranks, which found the same. Communication: all-gathers over the world.
/// Throws: AgreedError(kPeer) that names the suspects and their nodes.
[[noreturn]] void end_corrupt(comm::Groups& groups, const std::vector<std::int64_t>& suspects,
                              const std::string& what);

/// The ranks that differ from the majority's value. All members without a majority; none if all are
/// equal.
[[nodiscard]] std::vector<std::int64_t> suspects_of(const std::vector<std::int64_t>& members,
                                                    const std::vector<std::uint64_t>& values);

}  // namespace strata::train
