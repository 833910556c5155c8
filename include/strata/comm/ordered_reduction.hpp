#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/grid/assignment.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::comm {

/// Number of slices of partial sums that each rank receives in a reduction. Pre: as
/// OrderedReduction's.
[[nodiscard]] std::vector<std::int64_t> received_parts(const grid::Assignment& lanes,
                                                       std::int64_t node_ranks = 1);

/// Reduce-scatter in the order of the sum tree (design law 1): an all-to-all of partial sums, then
/// a local fold of this rank's slice. Every element is summed by the same additions on any number
/// of ranks.
///
/// With nodes of several ranks, in two levels. Within a node, the rank with number i collects the
/// slices of the ranks with number i of every node, and adds what the node's lanes complete. The
/// ranks with one number then exchange these sums across nodes, which carry 1 / node_ranks of the
/// bytes of an all-to-all. The additions are the same.
class OrderedReduction {
 public:
  /// `lanes`: what each rank of the group computes. `node_ranks`: consecutive ranks that are added
  /// first; 1 for one level. Pre: lanes.ranks() == group.size(); group.size() % node_ranks == 0.
  OrderedReduction(Communicator& group, const grid::Assignment& lanes, std::int64_t node_ranks = 1);

  /// Number of partial sums that this rank contributes: one per tree node that its lanes complete.
  [[nodiscard]] std::int64_t own_parts() const { return inside_.parts[inside_.self]; }
  /// Elements of the receive buffer for slices of at most `slice_elements`.
  [[nodiscard]] std::int64_t receive_elements(std::int64_t slice_elements) const {
    return received_parts_ * slice_elements;
  }

  /// One reduction in flight.
  struct Pending {
    Request messages;
    /// Of this rank's slice; while messages are inside the node, of each slice that the rank
    /// collects there.
    std::vector<std::vector<TensorView>> parts;
    bool is_inside = false;
    /// For messages across nodes.
    TensorView received;
  };

  /// Starts the messages for `partials` (own_parts() views of equal shape, one per node, in
  /// order); rank r receives elements slices[r]. Shapes: received holds receive_elements(largest
  /// slice).
  [[nodiscard]] Pending start(std::span<const TensorView> partials,
                              std::span<const grid::Range> slices, TensorView received);
  /// Enqueues what is left, messages across nodes and fold(), on the stream that carries the
  /// messages, with which they then complete. Returns false where they have none: cross_nodes(),
  /// wait() and fold() do it. Overwrites as fold().
  [[nodiscard]] bool fold_behind(ops::Context& context, Pending& pending);
  /// Waits for messages inside the node, adds, and starts those across nodes; nothing where they
  /// are started.
  void cross_nodes(ops::Context& context, Pending& pending);
  /// Waits for its messages. Pre: cross_nodes().
  static void wait(Pending& pending);
  /// Sums after wait(): elements slices[rank] of partials[0] hold the result. Overwrites the other
  /// partial sums and the received ones.
  void fold(ops::Context& context, const Pending& pending) const;
  /// Sums bfloat16 partial sums after wait() into `sum` (float32, this rank's slice). Pre: one
  /// level, and one partial sum from each rank.
  void fold_into(ops::Context& context, const Pending& pending, const TensorView& sum) const;

 private:
  /// An exchange among some ranks, and the additions after it.
  struct Level {
    std::vector<std::int64_t> ranks;
    std::size_t self = 0;
    /// Partial sums of each rank, listed one rank after the other.
    std::vector<std::int64_t> parts;
    std::vector<ReductionStep> steps;
    /// The parts that hold the sums.
    std::vector<std::int64_t> sums;
  };
  [[nodiscard]] static Level make_level(std::vector<std::int64_t> ranks, std::size_t self,
                                        const std::vector<std::vector<grid::Range>>& nodes,
                                        std::span<const grid::Range> sums, std::int64_t own_home);
  void fold_inside(ops::Context& context, const Pending& pending) const;
  void begin_across(Pending& pending);

  Communicator* group_;
  Level inside_;
  Level across_;
  std::int64_t received_parts_ = 0;
};

/// Starts an in-place all-gather of a tensor whose slices the ranks of the group hold.
[[nodiscard]] Request begin_all_gather_slices(Communicator& group, TensorView tensor,
                                              std::span<const grid::Range> slices);

/// The same in two levels, as OrderedReduction's: first across nodes, then inside them.
class SliceGather {
 public:
  /// Starts it. Pre: group.size() % node_ranks == 0; the group outlives the object.
  SliceGather(Communicator& group, TensorView tensor, std::span<const grid::Range> slices,
              std::int64_t node_ranks);
  /// Waits for messages across nodes and starts those inside; nothing where they are started.
  void enter_nodes();
  void wait() {
    enter_nodes();
    messages_.wait();
  }

 private:
  void begin_inside();

  Communicator* group_;
  TensorView tensor_;
  std::vector<grid::Range> slices_;
  std::int64_t node_ranks_;
  Request messages_;
  bool is_across_ = false;
};

}  // namespace strata::comm
