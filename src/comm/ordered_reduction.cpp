#include "strata/comm/ordered_reduction.hpp"

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

/// The same additions with the result in part `home`. Swapping the two operands of an addition does
/// not change its bits.
std::vector<ReductionStep> steps_ending_at(std::span<const ReductionStep> steps, std::int64_t parts,
                                           std::int64_t home) {
  std::vector<std::int64_t> holder(static_cast<std::size_t>(parts));
  for (std::size_t i = 0; i < holder.size(); ++i) {
    holder[i] = static_cast<std::int64_t>(i);
  }
  std::vector<ReductionStep> result;
  for (const ReductionStep& step : steps) {
    std::int64_t into = holder[static_cast<std::size_t>(step.into)];
    std::int64_t from = holder[static_cast<std::size_t>(step.from)];
    if (from == home) {
      std::swap(into, from);
    }
    result.push_back({into, from});
    holder[static_cast<std::size_t>(step.into)] = into;
  }
  return result;
}

}  // namespace

std::int64_t received_parts(const grid::SumTree& tree, std::int64_t ranks, std::int64_t rank) {
  std::int64_t parts = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (r != rank) {
      parts += std::ssize(tree.nodes_within(grid::even_part(tree.leaves(), ranks, r)));
    }
  }
  return parts;
}

OrderedReduction::OrderedReduction(Communicator& group, const grid::SumTree& tree)
    : group_(&group) {
  require(tree.leaves() % group.size() == 0, "{} lanes for {} ranks", tree.leaves(), group.size());
  std::vector<grid::Range> nodes;
  for (std::int64_t r = 0; r < group.size(); ++r) {
    const std::vector<grid::Range> own =
        tree.nodes_within(grid::even_part(tree.leaves(), group.size(), r));
    if (r == group.rank()) {
      first_own_part_ = static_cast<std::int64_t>(nodes.size());
      own_parts_ = static_cast<std::int64_t>(own.size());
    }
    parts_of_.push_back(static_cast<std::int64_t>(own.size()));
    nodes.insert(nodes.end(), own.begin(), own.end());
  }
  parts_ = static_cast<std::int64_t>(nodes.size());
  steps_ = steps_ending_at(grid::reduction_steps(tree, nodes), parts_, first_own_part_);
}

OrderedReduction::Pending OrderedReduction::start(std::span<const TensorView> partials,
                                                  std::span<const grid::Range> slices,
                                                  TensorView received) {
  require(static_cast<std::int64_t>(partials.size()) == own_parts_,
          "{} partial sums for {} tree nodes", partials.size(), own_parts_);
  require(static_cast<std::int64_t>(slices.size()) == group_->size(), "{} slices for {} ranks",
          slices.size(), group_->size());
  const grid::Range mine = slices[static_cast<std::size_t>(group_->rank())];
  Pending pending;
  std::vector<Incoming> receives;
  std::int64_t offset = 0;
  for (std::int64_t r = 0; r < group_->size(); ++r) {
    for (std::int64_t k = 0; k < parts_of_[static_cast<std::size_t>(r)]; ++k) {
      if (r == group_->rank()) {
        pending.parts.push_back(
            partials[static_cast<std::size_t>(k)].flat_slice(mine.begin, mine.count()));
        continue;
      }
      pending.parts.push_back(received.flat_slice(offset, mine.count()));
      offset += mine.count();
      if (mine.count() > 0) {
        receives.push_back({.payload = pending.parts.back(), .peer = r});
      }
    }
  }
  // Each rank starts with its right neighbour, to avoid that all send to rank 0 first.
  std::vector<Outgoing> sends;
  for (std::int64_t step = 1; step < group_->size(); ++step) {
    const std::int64_t peer = (group_->rank() + step) % group_->size();
    const grid::Range slice = slices[static_cast<std::size_t>(peer)];
    for (const TensorView& partial : partials) {
      if (slice.count() > 0) {
        sends.push_back({.payload = partial.flat_slice(slice.begin, slice.count()), .peer = peer});
      }
    }
  }
  pending.messages = group_->exchange(sends, receives, Tag::kReduce);
  return pending;
}

bool OrderedReduction::fold_behind(ops::Context& context, Pending& pending) const {
  return pending.messages.follow(
      [&](device::Stream& stream) { context.on_stream(stream, [&] { fold(context, pending); }); });
}

void OrderedReduction::wait(Pending& pending) {
  pending.messages.wait();
}

void OrderedReduction::fold(ops::Context& context, const Pending& pending) const {
  ops::fold(context, pending.parts, steps_);
}

Request begin_all_gather_slices(Communicator& group, TensorView tensor,
                                std::span<const grid::Range> slices) {
  std::vector<Incoming> receives;
  std::vector<Outgoing> sends;
  const auto slice_of = [&](std::int64_t r) {
    const grid::Range& range = slices[static_cast<std::size_t>(r)];
    return tensor.flat_slice(range.begin, range.count());
  };
  for (std::int64_t step = 1; step < group.size(); ++step) {
    const std::int64_t from = (group.rank() + group.size() - step) % group.size();
    if (slice_of(from).count() > 0) {
      receives.push_back({.payload = slice_of(from), .peer = from});
    }
  }
  const TensorView own = slice_of(group.rank());
  for (std::int64_t step = 1; own.count() > 0 && step < group.size(); ++step) {
    sends.push_back({.payload = own, .peer = (group.rank() + step) % group.size()});
  }
  return group.exchange(sends, receives, Tag::kGather);
}

}  // namespace strata::comm
