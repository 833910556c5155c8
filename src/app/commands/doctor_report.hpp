#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "environment/versions.hpp"

namespace strata::app {

/// What one rank found out about its place. Texts hold no line breaks.
struct RankFacts {
  std::string host;
  std::int64_t rank_on_node = 0;
  std::int64_t ranks_on_node = 1;
  /// Cores that the launcher bound the rank to, as in "0-3", and how many; threads that a run takes
  /// there where run.threads leaves it open.
  std::string cores;
  std::int64_t core_count = 0;
  std::int64_t threads = 1;
  /// The highest that numerics.isa may name, as in "amx".
  std::string instruction_set;
  /// Of the GPU that the rank would take; empty where it sees none.
  std::string gpu_name;
  std::string gpu_bus_id;
  std::string gpu_uuid;
  std::int64_t gpu_memory_bytes = 0;
  std::int64_t gpu_free_bytes = 0;
  /// GPUs of the node that the rank sees and its own cannot reach without the host.
  std::vector<std::string> unreachable;
  /// The newest CUDA that the driver serves, and the linked one; 0 where there is none.
  std::int64_t driver_version = 0;
  std::int64_t runtime_version = 0;
  /// Why the rank's GPU could not be asked; empty where it could.
  std::string gpu_failure;
  std::string nccl_absence;
  /// Of the executable and its libraries.
  std::vector<VersionFact> versions;

  friend bool operator==(const RankFacts&, const RankFacts&) = default;
};

/// A table of the ranks, for people.
[[nodiscard]] std::string facts_text(std::span<const RankFacts> ranks);

/// What is wrong with the node or the launch and what to do about it, one text each; empty where
/// all is well. Ranks in order.
[[nodiscard]] std::vector<std::string> problems(std::span<const RankFacts> ranks);

/// Facts as one text and back, to travel between ranks.
[[nodiscard]] std::string packed(const RankFacts& facts);
[[nodiscard]] RankFacts unpacked(const std::string& text);

}  // namespace strata::app
