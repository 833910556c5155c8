#include "environment/instruction_sets.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/library_check.hpp"

namespace strata::app {

CommonInstructionSet common_instruction_set(std::span<const RankInstructionSet> ranks,
                                            ops::InstructionSet asked, DType dtype) {
  const auto [least, most] = std::ranges::minmax_element(ranks, {}, &RankInstructionSet::set);
  const std::string rank = fmt::format("rank {} on {}", least - ranks.begin(), least->host);
  const bool native = asked == ops::InstructionSet::kNative;
  if (!native && (asked > least->set || is_arm(asked) != is_arm(least->set))) {
    throw comm::AgreedError(
        ExitCode::kUsage,
        fmt::format("numerics.isa is {}, but {} has {}, by its CPU or by ONEDNN_MAX_CPU_ISA; set "
                    "it to {} or to native, or use other nodes",
                    name_of(asked), rank, name_of(least->set), name_of(least->set)));
  }
  const ops::InstructionSet set = native ? least->set : asked;
  // What oneDNN has on CPUs without classes is not known here.
  if (dtype == DType::kBfloat16 && set != ops::InstructionSet::kNative && !has_bfloat16(set)) {
    throw comm::AgreedError(
        ExitCode::kUsage,
        fmt::format("numerics.dtype is bfloat16, which oneDNN computes with AVX-512 alone, but {}; "
                    "use float32, or {}",
                    native ? fmt::format("{} has {}", rank, name_of(set))
                           : fmt::format("numerics.isa is {}", name_of(set)),
                    native ? "nodes with AVX-512" : "another numerics.isa"));
  }
  return {set, native && least->set != most->set
                   ? fmt::format("{} ({} has no more)", name_of(set), rank)
                   : std::string(name_of(set))};
}

std::string set_instruction_set(comm::MpiSession& mpi, ops::InstructionSet asked, DType dtype) {
  const std::vector<std::string> names =
      mpi.world().all_gather_texts(std::string(name_of(ops::native_instruction_set())));
  std::vector<RankInstructionSet> ranks;
  for (std::size_t r = 0; r < names.size(); ++r) {
    ranks.push_back({mpi.hosts()[r], enum_from_name<ops::InstructionSet>(names[r]).value()});
  }
  const CommonInstructionSet common = common_instruction_set(ranks, asked, dtype);
  comm::agree(mpi.world(), [&] {
    ops::cap_instruction_set(common.set);
    ops::check_library(dtype);
  });
  return common.text;
}

}  // namespace strata::app
