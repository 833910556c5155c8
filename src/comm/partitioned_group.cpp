#include "strata/comm/partitioned_group.hpp"

#include "strata/comm/ordered_reduction.hpp"
#include "strata/core/error.hpp"

namespace strata::comm {
PartitionedGroup::PartitionedGroup(Communicator& group, const ProgressEngine& engine,
                                   std::int64_t parts)
    : group_(&group),
      ranks_(group.size()),
      engine_(&engine),
      tree_(parts),
      own_(grid::even_part(parts, group.size(), group.rank())),
      steps_(grid::reduction_steps(tree_)) {}

PartitionedGroup::PartitionedGroup(std::int64_t parts)
    : group_(nullptr),
      ranks_(1),
      engine_(nullptr),
      tree_(parts),
      own_{0, parts},
      steps_(grid::reduction_steps(tree_)) {}

void PartitionedGroup::set_group(Communicator& group) {
  require(group_ != nullptr && group.size() == ranks_, "another group of {} ranks where {} were",
          group.size(), ranks_);
  group_ = &group;
  own_ = grid::even_part(parts(), group.size(), group.rank());
}

void PartitionedGroup::all_gather_parts(const ConstTensorView& mine, const TensorView& all) {
  if (ranks() == 1) {
    require(mine.raw() == all.raw(), "the parts of a single rank are not in the gathered tensor");
    return;
  }
  timed([&] { group_->all_gather(mine, all); });
}

}  // namespace strata::comm
