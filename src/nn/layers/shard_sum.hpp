#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// A matrix that is the sum of one contribution for each shard, in the memory that workspace()
/// lists.
class ShardSum {
 public:
  /// Memory for a sum of rows x columns; empty tensors for no rows.
  [[nodiscard]] static std::vector<TensorSpec> workspace(const PassShape& pass, std::int64_t rows,
                                                         std::int64_t columns) {
    const DType dtype = compute_dtype(pass.dtype);
    std::vector<TensorSpec> specs = slot_list<Workspace, TensorSpec>(
        {{Workspace::kReceived,
          {{comm::ShardGroup::receive_elements(pass.shards.count, pass.shards.own, rows, columns)},
           dtype}}});
    const std::int64_t count = comm::ShardGroup::accumulators(pass.shards.count, pass.shards.own);
    specs.insert(specs.end(), static_cast<std::size_t>(count), {{rows, columns}, dtype});
    return specs;
  }

  /// Pre: `workspace` is as listed for at least as many rows.
  ShardSum(const LayerPass& pass, const TensorSlots& workspace, std::int64_t rows,
           std::int64_t columns)
      : pass_(pass), received_(workspace.at(Workspace::kReceived)), rows_(rows), columns_(columns) {
    for (const TensorView& accumulator : workspace.from(Workspace::kAccumulators)) {
      accumulators_.push_back(
          accumulator.flat_slice(0, rows * columns).reshaped(Shape{rows, columns}));
    }
  }

  /// Starts to sum what make(shard, into) writes for each shard. Communication: starts a
  /// reduce-scatter over the tensor group.
  template <typename Make>
  void begin(const Make& make) {
    add_shards({0, rows_}, make);
    start();
  }

  /// begin() in parts: the rows in `range` of what make(shard, into) writes, then, after all rows,
  /// start().
  template <typename Make>
  void add_shards(const grid::Range& range, const Make& make) {
    std::vector<TensorView> views;
    for (const TensorView& accumulator : accumulators_) {
      views.push_back(accumulator.flat_slice(range.begin * columns_, range.count() * columns_)
                          .reshaped(Shape{range.count(), columns_}));
    }
    pass_.shards.partial_sums(pass_.context, views, make);
  }
  void start() { sum_ = pass_.shards.begin_sum(accumulators_, received_); }

  /// After begin(): the rows of the sum that a rank holds under `placement`. Communication: waits
  /// for the reduce-scatter; except for kTokens one all-gather.
  [[nodiscard]] TensorView end(Placement placement) {
    if (placement != Placement::kTokens) {
      pass_.shards.end_all_reduce(pass_.context, accumulators_, sum_);
      return accumulators_.front();
    }
    pass_.shards.end_reduce_scatter(pass_.context, sum_);
    const grid::Range own = pass_.shards.own_rows(rows_);
    return accumulators_.front()
        .flat_slice(own.begin * columns_, own.count() * columns_)
        .reshaped(Shape{own.count(), columns_});
  }

  /// begin() and end().
  template <typename Make>
  [[nodiscard]] TensorView rows(Placement placement, const Make& make) {
    begin(make);
    return end(placement);
  }

 private:
  enum class Workspace { kReceived, kAccumulators };

  const LayerPass& pass_;
  TensorView received_;
  std::int64_t rows_;
  std::int64_t columns_;
  std::vector<TensorView> accumulators_;
  comm::OrderedReduction::Pending sum_;
};

}  // namespace strata::nn
