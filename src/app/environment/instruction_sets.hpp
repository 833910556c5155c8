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

/// The instruction set that all ranks use.
struct CommonInstructionSet {
  ops::InstructionSet set = ops::InstructionSet::kNative;
  /// As in "amx", or "avx2 (rank 1 on node7 has no more)" where another rank has a higher class.
  std::string text;
};

/// The class `asked`; under kNative the lowest class of the ranks. Pre: at least one rank.
/// Throws: AgreedError(kUsage) that names a rank without it, or without bfloat16.
[[nodiscard]] CommonInstructionSet common_instruction_set(std::span<const RankInstructionSet> ranks,
                                                          ops::InstructionSet asked, DType dtype);

/// Limits oneDNN on every rank to the common class, and checks the properties of oneDNN that equal
/// bits on every grid depend on. Returns: the class as text. Communication: collective over the
/// world. Pre: no rank has made a CPU context. Throws: as common_instruction_set();
/// AgreedError(kPeer) as ops::cap_instruction_set() and ops::check_library().
[[nodiscard]] std::string choose_instruction_set(comm::MpiSession& mpi, ops::InstructionSet asked,
                                                 DType dtype);

}  // namespace strata::app
