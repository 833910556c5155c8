#pragma once

#include <span>
#include <string>

#include "strata/comm/mpi.hpp"
#include "strata/core/dtype.hpp"
#include "strata/ops/instruction_set.hpp"

namespace strata::app {

/// The highest instruction set that a rank may use.
struct RankInstructionSet {
  std::string host;
  ops::InstructionSet set = ops::InstructionSet::kNative;
};

/// The instruction set of all ranks.
struct CommonInstructionSet {
  ops::InstructionSet set = ops::InstructionSet::kNative;
  /// As in "amx", or "avx2 (rank 1 on node7 has no more)" where a rank could use a higher one.
  std::string text;
};

/// The requested instruction set; for kNative the lowest over all ranks.
/// Pre: `ranks` is in rank order and not empty.
/// Throws: AgreedError(kUsage) naming a rank that lacks the set or bfloat16.
[[nodiscard]] CommonInstructionSet common_instruction_set(std::span<const RankInstructionSet> ranks,
                                                          ops::InstructionSet asked, DType dtype);

/// Caps oneDNN on every rank at the common instruction set and checks that oneDNN computes the same
/// bits on every grid.
/// Returns: CommonInstructionSet::text.
/// Communication: collective over the world.
/// Pre: no rank has created a CPU context.
/// Throws: as common_instruction_set(); AgreedError(kPeer) as ops::cap_instruction_set() and
/// ops::check_library().
[[nodiscard]] std::string set_instruction_set(comm::MpiSession& mpi, ops::InstructionSet asked,
                                              DType dtype);

}  // namespace strata::app
