#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "environment/placement.hpp"

namespace strata::app {

/// Facts that one rank collects about its node. Texts hold no line breaks. Its threads are the
/// default of run.threads there.
struct RankFacts : Placement {
  std::int64_t rank_on_node = 0;
  std::int64_t ranks_on_node = 1;
  /// The highest value that numerics.isa may have, as in "amx".
  std::string instruction_set;
  std::string gpu_name;  ///< of the GPU that the rank would use; empty without one
  std::int64_t gpu_memory_bytes = 0;
  std::int64_t gpu_free_bytes = 0;
  /// Bus ids of visible GPUs without peer access from the rank's GPU.
  std::vector<std::string> unreachable;
  /// CUDA versions of the driver and of the linked runtime; 0 without one.
  std::int64_t driver_version = 0;
  std::int64_t runtime_version = 0;
  /// What is wrong with the rank's GPU or its libraries; empty where nothing is.
  std::string gpu_failure;
  std::string nccl_absence;
  /// The rank's clock against rank 0's, in seconds.
  double clock_offset_seconds = 0.0;
  /// Soft limits; 0: none.
  std::int64_t open_files = 0;
  std::int64_t locked_memory_bytes = 0;
  std::vector<std::string> interfaces;  ///< that are up, the loopback apart
  /// Versions of the executable and its libraries.
  std::vector<VersionFact> versions;

  friend bool operator==(const RankFacts&, const RankFacts&) = default;
};

/// A printable table of the ranks.
[[nodiscard]] std::string facts_text(std::span<const RankFacts> ranks);

/// Clocks, limits and interfaces, one line each.
[[nodiscard]] std::string system_text(std::span<const RankFacts> ranks);

/// Problems of the nodes or the launch, each with what to do about it; empty where there are none.
/// Pre: `ranks` is in rank order.
[[nodiscard]] std::vector<std::string> problems(std::span<const RankFacts> ranks);

/// Serialises facts to one text, to be sent between ranks, and back.
[[nodiscard]] std::string packed(const RankFacts& facts);
[[nodiscard]] RankFacts unpacked(const std::string& text);

}  // namespace strata::app
