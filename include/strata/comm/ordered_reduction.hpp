#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/grid/tree.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::comm {

/// Partial sums that a rank receives in a reduction: one for each tree node that other ranks hold.
/// Pre: ranks divides the number of leaves.
[[nodiscard]] std::int64_t received_parts(const grid::SumTree& tree, std::int64_t ranks,
                                          std::int64_t rank);

/// Adds the ranks' partial sums in the order of the sum tree (design law 1), each rank its own
/// slice: all-to-all, then a local fold. Every element's sum is formed by the same additions
/// whatever the number of ranks. Communication: each rank sends and receives (size - 1) / size of
/// the bytes, times its tree nodes.
class OrderedReduction {
 public:
  /// Lanes are dealt evenly to the ranks of the group. Pre: tree.leaves() % group.size() == 0.
  OrderedReduction(Communicator& group, const grid::SumTree& tree);

  /// Partial sums that this rank contributes: one for each tree node that its lanes make up.
  [[nodiscard]] std::int64_t own_parts() const { return own_parts_; }
  /// Elements of receive memory for slices of at most `slice_elements`.
  [[nodiscard]] std::int64_t receive_elements(std::int64_t slice_elements) const {
    return (parts_ - own_parts_) * slice_elements;
  }

  /// One reduction in flight.
  struct Pending {
    Request messages;
    std::vector<TensorView> parts;
  };

  /// Begins to add `partials` (own_parts() views of equal shape, one a node, in order), rank r
  /// receiving elements slices[r]. Shapes: received holds receive_elements(own slice).
  [[nodiscard]] Pending start(std::span<const TensorView> partials,
                              std::span<const grid::Range> slices, TensorView received);
  /// Ends its messages.
  static void wait(Pending& pending);
  /// Adds, after wait(): the sum of the own slice stands in partials[0]'s elements of that slice.
  /// The other partial sums and the received ones are spent.
  void fold(ops::Context& context, const Pending& pending) const;

 private:
  Communicator& group_;
  std::vector<std::int64_t> parts_of_;
  std::int64_t parts_ = 0;
  std::int64_t own_parts_ = 0;
  std::int64_t first_own_part_ = 0;
  std::vector<ReductionStep> steps_;
};

/// Sends this rank's slice of a tensor to every rank of the group and receives theirs, in place.
[[nodiscard]] Request begin_all_gather_slices(Communicator& group, TensorView tensor,
                                              std::span<const grid::Range> slices);

}  // namespace strata::comm
