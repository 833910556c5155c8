#include "strata/comm/shard_group.hpp"

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

std::int64_t row_elements(const TensorView& tensor) {
  return tensor.count() / tensor.shape()[0];
}

}  // namespace

ShardGroup::ShardGroup(Communicator& group, const ProgressEngine& engine, std::int64_t shards,
                       Summation summation)
    : PartitionedGroup(group, engine, shards),
      summation_(summation),
      fold_(grid::running_reduction(tree().nodes_within(own()))),
      reduction_(std::in_place, group, grid::Assignment::blocked(tree(), group.size())) {
  require(summation == Summation::kInvariant || shards == group.size(),
          "{} shards on {} ranks under the library's sums", shards, group.size());
}

ShardGroup::ShardGroup(std::int64_t shards)
    : PartitionedGroup(shards),
      summation_(Summation::kInvariant),
      fold_(grid::running_reduction(tree().nodes_within(own()))) {}

grid::Range ShardGroup::own_rows(std::int64_t rows) const {
  return group() == nullptr ? grid::Range{0, rows}
                            : grid::even_part(rows, group()->size(), group()->rank());
}

std::int64_t ShardGroup::accumulators(std::int64_t shards, const grid::Range& own) {
  return grid::running_reduction(grid::SumTree(shards).nodes_within(own)).accumulators;
}

std::int64_t ShardGroup::receive_elements(std::int64_t shards, const grid::Range& own,
                                          std::int64_t rows, std::int64_t columns) {
  const std::int64_t ranks = shards / own.count();
  const std::int64_t most_rows = (rows + ranks - 1) / ranks;
  const auto lanes = grid::Assignment::blocked(grid::SumTree(shards), ranks);
  return received_parts(lanes)[static_cast<std::size_t>(own.begin / own.count())] * most_rows *
         columns;
}

void ShardGroup::fold_after(ops::Context& context, std::span<const TensorView> accumulators,
                            std::size_t shard) const {
  const std::vector<ReductionStep>& steps = fold_.after[shard];
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

OrderedReduction::Pending ShardGroup::begin_sum(std::span<const TensorView> accumulators,
                                                const TensorView& received) {
  OrderedReduction::Pending sum;
  if (ranks() == 1) {
    return sum;
  }
  if (summation_ == Summation::kLibrary) {
    timed([&] { group()->all_reduce(accumulators.front()); });
    return sum;
  }
  std::vector<TensorView> partials;
  for (std::int64_t k = 0; k < reduction_->own_parts(); ++k) {
    const TensorView& part = accumulators[static_cast<std::size_t>(k)];
    partials.push_back(part.reshaped(Shape{part.count()}));
  }
  timed([&] { sum = reduction_->start(partials, element_slices(accumulators.front()), received); });
  return sum;
}

void ShardGroup::end_reduce_scatter(ops::Context& context, OrderedReduction::Pending& sum,
                                    const TensorView& result) {
  if (ranks() == 1 || summation_ == Summation::kLibrary) {
    return;
  }
  timed([&] { OrderedReduction::wait(sum); });
  if (sum.parts.front().front().dtype() == result.dtype()) {
    reduction_->fold(context, sum);
    return;
  }
  const grid::Range own = element_slices(result)[static_cast<std::size_t>(group()->rank())];
  reduction_->fold_into(context, sum, result.flat_slice(own.begin, own.count()));
}

Request ShardGroup::end_all_reduce(ops::Context& context, OrderedReduction::Pending& sum,
                                   const TensorView& result) {
  end_reduce_scatter(context, sum, result);
  return summation_ == Summation::kInvariant ? begin_gather_rows(result) : Request();
}

Request ShardGroup::begin_gather_rows(const TensorView& tensor) {
  Request request;
  if (ranks() > 1) {
    timed([&] {
      request = begin_all_gather_slices(*group(), tensor.reshaped(Shape{tensor.count()}),
                                        element_slices(tensor));
    });
  }
  return request;
}

}  // namespace strata::comm
