#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "strata/comm/ordered_reduction.hpp"
#include "strata/comm/partitioned_group.hpp"
#include "strata/comm/summation.hpp"
#include "strata/ops/context.hpp"

namespace strata::comm {

/// The virtual shards distributed over the ranks of a tensor group: each rank owns the shards own()
/// and computes them one after the other. All collectives are over the tensor group; with one rank
/// there are no messages.
class ShardGroup : public PartitionedGroup {
 public:
  /// Pre: group.size() divides shards; for kLibrary shards == group.size(). Group and engine
  /// outlive the object.
  ShardGroup(Communicator& group, const ProgressEngine& engine, std::int64_t shards,
             Summation summation);
  /// All shards on one rank.
  explicit ShardGroup(std::int64_t shards);

  [[nodiscard]] std::int64_t shards() const { return parts(); }

  /// The rows of a tensor of `rows` that this rank owns under sequence parallelism.
  [[nodiscard]] grid::Range own_rows(std::int64_t rows) const;

  /// Number of accumulators that partial_sums() needs on a rank with `own` of `shards` shards.
  [[nodiscard]] static std::int64_t accumulators(std::int64_t shards, const grid::Range& own);
  /// Elements of the receive buffer that a reduction of rows x columns tensors needs on any rank.
  [[nodiscard]] static std::int64_t receive_elements(std::int64_t shards, const grid::Range& own,
                                                     std::int64_t rows, std::int64_t columns);

  /// Calls make(shard, accumulator) for each own shard in order, which overwrites the accumulator
  /// with the shard's partial result, and reduces the tree nodes that the own shards complete.
  template <typename Make>
  void partial_sums(ops::Context& context, std::span<const TensorView> accumulators,
                    const Make& make) const {
    for (std::size_t i = 0; i < fold_.accumulator.size(); ++i) {
      make(own().begin + static_cast<std::int64_t>(i),
           accumulators[static_cast<std::size_t>(fold_.accumulator[i])]);
      fold_after(context, accumulators, i);
    }
  }

  /// After partial_sums(): starts to sum over all shards. Until the end no one may touch the
  /// accumulators and `received`, which are overwritten. Shapes: accumulators rows x n, `received`
  /// of the same dtype.
  [[nodiscard]] OrderedReduction::Pending begin_sum(std::span<const TensorView> accumulators,
                                                    const TensorView& received);
  /// Writes the sum to the own rows of `result`: accumulators[0], or where that is bfloat16 another
  /// tensor (float32, rows x n).
  void end_reduce_scatter(ops::Context& context, OrderedReduction::Pending& sum,
                          const TensorView& result);
  /// Writes the sum to all rows of `result`, as end_reduce_scatter(), once the request that it
  /// returns is complete.
  [[nodiscard]] Request end_all_reduce(ops::Context& context, OrderedReduction::Pending& sum,
                                       const TensorView& result);
  /// Starts to fill all rows of a tensor from the ranks' own rows, in place.
  [[nodiscard]] Request begin_gather_rows(const TensorView& tensor);
  void wait(Request& request) {
    if (request.pending()) {
      timed([&] { request.wait(); });
    }
  }

 private:
  void fold_after(ops::Context& context, std::span<const TensorView> accumulators,
                  std::size_t shard) const;
  [[nodiscard]] std::vector<grid::Range> element_slices(const TensorView& tensor) const;

  Summation summation_;
  grid::RunningReduction fold_;
  std::optional<OrderedReduction> reduction_;
};

}  // namespace strata::comm
