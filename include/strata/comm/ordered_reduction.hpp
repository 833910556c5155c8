#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/grid/tree.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::comm {

/// Number of partial sums that a rank receives in a reduction: one per tree node of other ranks.
/// Pre: ranks divides the number of leaves.
[[nodiscard]] std::int64_t received_parts(const grid::SumTree& tree, std::int64_t ranks,
                                          std::int64_t rank);

/// Reduce-scatter in the order of the sum tree (design law 1): an all-to-all of partial sums, then
/// a local fold of this rank's slice. Every element is summed by the same additions on any number
/// of ranks. Communication: each rank sends and receives (size - 1) / size of the bytes, times its
/// tree nodes.
class OrderedReduction {
 public:
  /// Lanes are distributed evenly over the ranks of the group. Pre: tree.leaves() % group.size() ==
  /// 0.
  OrderedReduction(Communicator& group, const grid::SumTree& tree);

  /// Number of partial sums that this rank contributes: one per tree node that its lanes complete.
  [[nodiscard]] std::int64_t own_parts() const { return own_parts_; }
  /// Elements of the receive buffer for slices of at most `slice_elements`.
  [[nodiscard]] std::int64_t receive_elements(std::int64_t slice_elements) const {
    return (parts_ - own_parts_) * slice_elements;
  }

  /// One reduction in flight.
  struct Pending {
    Request messages;
    std::vector<TensorView> parts;
  };

  /// Starts the all-to-all of `partials` (own_parts() views of equal shape, one per node, in
  /// order); rank r receives elements slices[r]. Shapes: received holds receive_elements(own
  /// slice).
  [[nodiscard]] Pending start(std::span<const TensorView> partials,
                              std::span<const grid::Range> slices, TensorView received);
  /// Enqueues fold() on the stream that carries the messages, with which they then complete.
  /// Returns false where they have none: wait() and fold() do it. Overwrites as fold().
  [[nodiscard]] bool fold_behind(ops::Context& context, Pending& pending) const;
  /// Waits for its messages.
  static void wait(Pending& pending);
  /// Sums after wait(): elements slices[rank] of partials[0] hold the result. Overwrites the other
  /// partial sums and the received ones.
  void fold(ops::Context& context, const Pending& pending) const;

 private:
  Communicator* group_;
  std::vector<std::int64_t> parts_of_;
  std::int64_t parts_ = 0;
  std::int64_t own_parts_ = 0;
  std::int64_t first_own_part_ = 0;
  std::vector<ReductionStep> steps_;
};

/// Starts an in-place all-gather of a tensor whose slices the ranks of the group hold.
[[nodiscard]] Request begin_all_gather_slices(Communicator& group, TensorView tensor,
                                              std::span<const grid::Range> slices);

}  // namespace strata::comm
