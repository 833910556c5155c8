#include "strata/comm/shard_group.hpp"

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

std::vector<ops::FoldPair> leaf_steps(const grid::SumTree& tree) {
  std::vector<grid::Range> leaves;
  for (std::int64_t s = 0; s < tree.leaves(); ++s) {
    leaves.push_back({s, s + 1});
  }
  return fold_pairs(grid::fold_steps(tree, leaves));
}

std::int64_t row_elements(const TensorView& tensor) {
  return tensor.count() / tensor.shape()[0];
}

}  // namespace

ShardGroup::ShardGroup(Communicator& group, std::int64_t shards, Summation summation)
    : group_(&group),
      tree_(shards),
      summation_(summation),
      own_(grid::even_part(shards, group.size(), group.rank())),
      fold_(grid::running_fold(tree_, own_)),
      steps_(leaf_steps(tree_)),
      reduction_(std::in_place, group, tree_) {
  require(summation == Summation::kInvariant || shards == group.size(),
          "{} shards on {} ranks under the library's sums", shards, group.size());
}

ShardGroup::ShardGroup(std::int64_t shards)
    : group_(nullptr),
      tree_(shards),
      summation_(Summation::kInvariant),
      own_{0, shards},
      fold_(grid::running_fold(tree_, own_)),
      steps_(leaf_steps(tree_)) {}

grid::Range ShardGroup::own_rows(std::int64_t rows) const {
  return group_ == nullptr ? grid::Range{0, rows}
                           : grid::even_part(rows, group_->size(), group_->rank());
}

std::int64_t ShardGroup::accumulators(std::int64_t shards, const grid::Range& own) {
  return grid::running_fold(grid::SumTree(shards), own).accumulators;
}

std::int64_t ShardGroup::receive_elements(std::int64_t shards, const grid::Range& own,
                                          std::int64_t rows, std::int64_t columns) {
  const std::int64_t ranks = shards / own.count();
  const std::int64_t most_rows = (rows + ranks - 1) / ranks;
  return received_parts(grid::SumTree(shards), ranks, own.begin / own.count()) * most_rows *
         columns;
}

void ShardGroup::fold_after(ops::Context& context, std::span<const TensorView> accumulators,
                            std::size_t shard) const {
  const std::vector<ops::FoldPair> steps = fold_pairs(fold_.after[shard]);
  if (!steps.empty()) {
    ops::fold(context, accumulators, steps);
  }
}

std::vector<grid::Range> ShardGroup::element_slices(const TensorView& tensor) const {
  const std::int64_t row = row_elements(tensor);
  std::vector<grid::Range> slices;
  for (std::int64_t r = 0; r < ranks(); ++r) {
    const grid::Range rows = grid::even_part(tensor.shape()[0], ranks(), r);
    slices.push_back({rows.begin * row, rows.end * row});
  }
  return slices;
}

void ShardGroup::reduce_scatter(ops::Context& context, std::span<const TensorView> accumulators,
                                const TensorView& received) {
  if (ranks() == 1) {
    return;
  }
  std::vector<TensorView> partials;
  for (std::int64_t k = 0; k < reduction_->own_parts(); ++k) {
    const TensorView& part = accumulators[static_cast<std::size_t>(k)];
    partials.push_back(part.reshaped(Shape{part.count()}));
  }
  const double begin = now_seconds();
  if (summation_ == Summation::kLibrary) {
    group_->all_reduce(accumulators.front());
    exposed_seconds_ += now_seconds() - begin;
    return;
  }
  OrderedReduction::Pending pending =
      reduction_->start(partials, element_slices(accumulators.front()), received);
  OrderedReduction::wait(pending);
  exposed_seconds_ += now_seconds() - begin;
  reduction_->fold(context, pending);
}

void ShardGroup::all_reduce(ops::Context& context, std::span<const TensorView> accumulators,
                            const TensorView& received) {
  reduce_scatter(context, accumulators, received);
  if (summation_ == Summation::kInvariant) {
    all_gather_rows(accumulators.front());
  }
}

void ShardGroup::all_gather_rows(const TensorView& tensor) {
  if (ranks() == 1) {
    return;
  }
  const double begin = now_seconds();
  std::vector<Request> requests = begin_all_gather_slices(
      *group_, tensor.reshaped(Shape{tensor.count()}), element_slices(tensor));
  for (Request& request : requests) {
    request.wait();
  }
  exposed_seconds_ += now_seconds() - begin;
}

void ShardGroup::all_gather_parts(const ConstTensorView& mine, const TensorView& all) {
  if (ranks() == 1) {
    require(mine.raw() == all.raw(), "parts of one rank that are not in their place");
    return;
  }
  const double begin = now_seconds();
  group_->all_gather(mine, all);
  exposed_seconds_ += now_seconds() - begin;
}

}  // namespace strata::comm
