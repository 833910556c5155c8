#pragma once

#include <span>
#include <string>

#include "strata/comm/mpi.hpp"
#include "strata/core/dtype.hpp"
#include "strata/ops/instruction_set.hpp"

namespace strata::app {

/// The highest class of instruction sets that a rank may use.
struct RankInstructionSet {
  std::string host;
  ops::InstructionSet set = ops::InstructionSet::kNative;
};

/// What all ranks compute with.
struct CommonInstructionSet {
  ops::InstructionSet set = ops::InstructionSet::kNative;
  /// As in "amx", or "avx2 (rank 1 on node7 has no more)" where a rank could use a higher class.
  std::string text;
};

/// The class that is asked for; under kNative the lowest of the ranks'. Ranks in order, one at
/// least. Throws: AgreedError(kUsage) that names the rank which lacks it, or which has no bfloat16.
[[nodiscard]] CommonInstructionSet common_instruction_set(std::span<const RankInstructionSet> ranks,
                                                          ops::InstructionSet asked, DType dtype);

/// Caps oneDNN on every rank at their common class, which it returns as text, and checks what the
/// promise of equal bits needs of it. Communication: collective over the world.
/// Pre: no rank has made a CPU context. Throws: as common_instruction_set(); AgreedError(kPeer) as
/// ops::cap_instruction_set() and ops::check_library().
[[nodiscard]] std::string settle_instruction_set(comm::MpiSession& mpi, ops::InstructionSet asked,
                                                 DType dtype);

}  // namespace strata::app
