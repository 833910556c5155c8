#include "replication/replica_check.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/host_name.hpp"

namespace strata::train {
std::vector<std::int64_t> suspects_of(const std::vector<std::int64_t>& members,
                                      const std::vector<std::uint64_t>& values) {
  for (const std::uint64_t value : values) {
    const auto same = static_cast<std::size_t>(std::ranges::count(values, value));
    if (2 * same <= values.size()) {
      continue;
    }
    std::vector<std::int64_t> others;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (values[i] != value) {
        others.push_back(members[i]);
      }
    }
    return others;
  }
  return members;
}

void ReplicaCheck::compare(std::int64_t step) {
  const double start = now_seconds();
  step_ = step;
  held_ = {.weights = state_.weights_hash(), .state = state_.optimizer_hash()};
  const std::vector<Hashes> all = comm::gathered(*groups_.world, *held_);
  std::vector<std::int64_t> suspects;
  for (std::int64_t stage = 0; stage < groups_.grid.pipeline; ++stage) {
    for (std::int64_t shard = 0; shard < groups_.grid.tensor; ++shard) {
      std::vector<std::int64_t> members;
      std::vector<std::uint64_t> values;
      for (std::int64_t replica = 0; replica < groups_.grid.data; ++replica) {
        members.push_back(groups_.grid.rank_of({replica, stage, shard}));
        values.push_back(all[static_cast<std::size_t>(members.back())].weights);
      }
      std::ranges::copy(suspects_of(members, values), std::back_inserter(suspects));
    }
  }
  seconds_ = now_seconds() - start;
  all_seconds_ += seconds_;
  ++comparisons_;
  if (!suspects.empty()) {
    end_corrupt(
        groups_, suspects,
        fmt::format("after the update of step {} the replicas hold different weights", step));
  }
}

void ReplicaCheck::confirm(Until until) {
  if (!held_) {
    return;
  }
  const double start = now_seconds();
  const Hashes now{.weights = state_.weights_hash(), .state = state_.optimizer_hash()};
  const std::vector<Hashes> changed = comm::gathered(
      *groups_.world,
      Hashes{.weights = now.weights ^ held_->weights, .state = now.state ^ held_->state});
  std::vector<std::int64_t> suspects;
  const char* what = "optimizer state";
  for (std::size_t rank = 0; rank < changed.size(); ++rank) {
    if (changed[rank].weights != 0 || changed[rank].state != 0) {
      suspects.push_back(static_cast<std::int64_t>(rank));
      what = changed[rank].weights != 0 ? "weights" : what;
    }
  }
  if (until == Until::kUpdate) {
    held_.reset();
  }
  const double took = now_seconds() - start;
  seconds_ += took;
  all_seconds_ += took;
  if (!suspects.empty()) {
    end_corrupt(groups_, suspects,
                fmt::format("{} changed after the update of step {}, where nothing writes to "
                            "them",
                            what, step_));
  }
}

void end_corrupt(comm::Groups& groups, const std::vector<std::int64_t>& suspects,
                 const std::string& what) {
  const std::vector<std::string> hosts = groups.world->all_gather_texts(host_name());
  std::vector<std::string> named;
  named.reserve(suspects.size());
  for (const std::int64_t rank : suspects) {
    named.push_back(fmt::format("rank {} on {}", rank, hosts[static_cast<std::size_t>(rank)]));
  }
  throw comm::AgreedError(
      ExitCode::kPeer,
      fmt::format("silent corruption: {}; {}: {}. Nothing more is saved. Have the memory and the "
                  "GPUs there checked, and continue elsewhere (sbatch --exclude) with "
                  "--run.resume=auto",
                  what, suspects.size() == 1 ? "the suspect is" : "the suspects are",
                  fmt::join(named, ", ")));
}

}  // namespace strata::train
