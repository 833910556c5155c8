#include "environment/instruction_sets.hpp"

#include <algorithm>
#include <set>
#include <utility>
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
  const bool is_lowered = native && least->set != most->set;
  return {set, fmt::format("{}{}{}", name_of(set),
                           is_lowered ? fmt::format(" ({} has no more)", rank) : "",
                           dtype == DType::kBfloat16 && widens_bfloat16(set)
                               ? "; products of bfloat16 are computed in float32, which is slower"
                               : "")};
}

std::string set_instruction_set(comm::MpiSession& mpi, ops::InstructionSet asked, DType dtype) {
  const std::vector<std::string> names =
      mpi.world().all_gather_texts(std::string(name_of(ops::native_instruction_set())));
  std::vector<RankInstructionSet> ranks;
  for (std::size_t r = 0; r < names.size(); ++r) {
    ranks.push_back({mpi.hosts()[r], enum_from_name<ops::InstructionSet>(names[r]).value()});
  }
  const CommonInstructionSet common = common_instruction_set(ranks, asked, dtype);
  static std::set<std::pair<ops::InstructionSet, DType>> checked;  // by this process
  comm::agree(mpi.world(), [&] {
    ops::cap_instruction_set(common.set);
    if (!checked.contains({common.set, dtype})) {
      ops::check_library(dtype);
      checked.emplace(common.set, dtype);
    }
  });
  return common.text;
}

}  // namespace strata::app
