#include "strata/comm/ordered_reduction.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "strata/core/error.hpp"

namespace strata::comm {
namespace {

/// The same additions with the result of one of them in part `home`. Swapping the two operands of
/// an addition does not change its bits. `holder` becomes the part that holds what the additions
/// leave in each part.
std::vector<ReductionStep> steps_ending_at(std::span<const ReductionStep> steps, std::int64_t home,
                                           std::vector<std::int64_t>& holder) {
  std::iota(holder.begin(), holder.end(), 0);
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

std::vector<std::int64_t> received_parts(const grid::Assignment& lanes, std::int64_t node_ranks) {
  // The sums of some ranks, of each group of so many.
  const auto sums_of = [&](std::int64_t together) {
    std::vector<std::int64_t> sums;
    for (std::int64_t r = 0; r < lanes.ranks(); r += together) {
      sums.push_back(std::ssize(lanes.nodes_of({r, r + together})));
    }
    return sums;
  };
  const std::vector<std::int64_t> of_rank = sums_of(1);
  const std::vector<std::int64_t> of_node = sums_of(node_ranks);
  const std::int64_t across = std::accumulate(of_node.begin(), of_node.end(), std::int64_t{0});
  std::vector<std::int64_t> received;
  for (std::int64_t node = 0; node < std::ssize(of_node); ++node) {
    const auto first = of_rank.begin() + node * node_ranks;
    const std::int64_t inside = std::accumulate(first, first + node_ranks, std::int64_t{0});
    std::transform(first, first + node_ranks, std::back_inserter(received), [&](std::int64_t own) {
      return std::ssize(of_node) * (inside - own) + across -
             of_node[static_cast<std::size_t>(node)];
    });
  }
  return received;
}

OrderedReduction::Level OrderedReduction::make_level(
    std::vector<std::int64_t> ranks, std::size_t self,
    const std::vector<std::vector<grid::Range>>& nodes, std::span<const grid::Range> sums,
    std::int64_t own_home) {
  Level level{.ranks = std::move(ranks), .self = self};
  std::vector<grid::Range> all;
  std::int64_t home = own_home;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    home += r < self ? std::ssize(nodes[r]) : 0;
    level.parts.push_back(std::ssize(nodes[r]));
    all.insert(all.end(), nodes[r].begin(), nodes[r].end());
  }
  std::vector<std::int64_t> holder(all.size());
  level.steps = steps_ending_at(grid::reduction_steps(all, sums), home, holder);
  for (const grid::Range& sum : sums) {
    const auto first = std::ranges::find(all, sum.begin, &grid::Range::begin);
    level.sums.push_back(holder[static_cast<std::size_t>(first - all.begin())]);
  }
  return level;
}

OrderedReduction::OrderedReduction(Communicator& group, const grid::Assignment& lanes,
                                   std::int64_t node_ranks)
    : group_(&group),
      received_parts_(received_parts(lanes, node_ranks)[static_cast<std::size_t>(group.rank())]) {
  const std::int64_t size = group.size();
  require(lanes.ranks() == size, "lanes of {} ranks for {} ranks", lanes.ranks(), size);
  require(size % node_ranks == 0, "nodes of {} ranks for {} ranks", node_ranks, size);
  const std::int64_t node = group.rank() / node_ranks;
  const std::int64_t number = group.rank() % node_ranks;
  const auto ranks_of = [&](std::int64_t n) {
    return grid::Range{n * node_ranks, (n + 1) * node_ranks};
  };
  std::vector<std::int64_t> ranks;
  std::vector<std::vector<grid::Range>> nodes;
  for (std::int64_t r = ranks_of(node).begin; r < ranks_of(node).end; ++r) {
    ranks.push_back(r);
    nodes.push_back(lanes.nodes_of(r));
  }
  const auto self = static_cast<std::size_t>(number);
  inside_ = make_level(ranks, self, nodes, lanes.nodes_of(ranks_of(node)), 0);
  const std::int64_t first_own =
      std::accumulate(inside_.parts.begin(), inside_.parts.begin() + number, std::int64_t{0});
  ranks.clear();
  nodes.clear();
  for (std::int64_t n = 0; n < size / node_ranks; ++n) {
    ranks.push_back(n * node_ranks + number);
    nodes.push_back(lanes.nodes_of(ranks_of(n)));
  }
  const auto home = std::ranges::find(inside_.sums, first_own);
  const grid::Range all{0, lanes.tree().leaves()};
  across_ = make_level(ranks, static_cast<std::size_t>(node), nodes, std::span(&all, 1),
                       home - inside_.sums.begin());
}

OrderedReduction::Pending OrderedReduction::start(std::span<const TensorView> partials,
                                                  std::span<const grid::Range> slices,
                                                  TensorView received) {
  require(static_cast<std::int64_t>(partials.size()) == own_parts(),
          "{} partial sums for {} tree nodes", partials.size(), own_parts());
  require(static_cast<std::int64_t>(slices.size()) == group_->size(), "{} slices for {} ranks",
          slices.size(), group_->size());
  const auto slice_of = [&](std::int64_t rank) { return slices[static_cast<std::size_t>(rank)]; };
  Pending pending{.is_inside = inside_.ranks.size() > 1};
  std::vector<Incoming> receives;
  std::int64_t offset = 0;
  for (const std::int64_t owner : across_.ranks) {
    const grid::Range slice = slice_of(owner);
    std::vector<TensorView>& parts = pending.parts.emplace_back();
    for (std::size_t r = 0; r < inside_.ranks.size(); ++r) {
      for (std::int64_t k = 0; k < inside_.parts[r]; ++k) {
        if (r == inside_.self) {
          parts.push_back(
              partials[static_cast<std::size_t>(k)].flat_slice(slice.begin, slice.count()));
          continue;
        }
        parts.push_back(received.flat_slice(offset, slice.count()));
        offset += slice.count();
        if (slice.count() > 0) {
          receives.push_back({.payload = parts.back(), .peer = inside_.ranks[r]});
        }
      }
    }
  }
  pending.received = received.flat_slice(offset, received.count() - offset);
  // Each rank starts with its right neighbour, to avoid that all send to rank 0 first.
  std::vector<Outgoing> sends;
  for (std::size_t step = 1; step < inside_.ranks.size(); ++step) {
    const std::size_t peer = (inside_.self + step) % inside_.ranks.size();
    for (const std::int64_t owner : across_.ranks) {
      const grid::Range slice = slice_of(owner - inside_.ranks[inside_.self] + inside_.ranks[peer]);
      for (const TensorView& partial : partials) {
        if (slice.count() > 0) {
          sends.push_back({.payload = partial.flat_slice(slice.begin, slice.count()),
                           .peer = inside_.ranks[peer]});
        }
      }
    }
  }
  if (pending.is_inside) {
    pending.messages = group_->exchange(sends, receives, Tag::kReduce);
  } else {
    begin_across(pending);
  }
  return pending;
}

void OrderedReduction::begin_across(Pending& pending) {
  pending.is_inside = false;
  const std::vector<std::vector<TensorView>> sums =
      std::exchange(pending.parts, std::vector<std::vector<TensorView>>(1));
  const auto sum_of = [&](std::size_t owner, std::int64_t k) {
    return sums[owner][static_cast<std::size_t>(inside_.sums[static_cast<std::size_t>(k)])];
  };
  const std::int64_t slice = sums[across_.self].front().count();
  std::vector<Incoming> receives;
  std::int64_t offset = 0;
  for (std::size_t r = 0; r < across_.ranks.size(); ++r) {
    for (std::int64_t k = 0; k < across_.parts[r]; ++k) {
      if (r == across_.self) {
        pending.parts.front().push_back(sum_of(r, k));
        continue;
      }
      pending.parts.front().push_back(pending.received.flat_slice(offset, slice));
      offset += slice;
      if (slice > 0) {
        receives.push_back({.payload = pending.parts.front().back(), .peer = across_.ranks[r]});
      }
    }
  }
  std::vector<Outgoing> sends;
  for (std::size_t step = 1; step < across_.ranks.size(); ++step) {
    const std::size_t peer = (across_.self + step) % across_.ranks.size();
    for (std::int64_t k = 0; k < std::ssize(inside_.sums); ++k) {
      if (sum_of(peer, k).count() > 0) {
        sends.push_back({.payload = sum_of(peer, k), .peer = across_.ranks[peer]});
      }
    }
  }
  pending.messages = group_->exchange(sends, receives, Tag::kReduce);
}

bool OrderedReduction::fold_behind(ops::Context& context, Pending& pending) {
  if (pending.is_inside) {
    if (!pending.messages.follow([&](device::Stream& stream) {
          context.on_stream(stream, [&] { fold_inside(context, pending); });
        })) {
      return false;
    }
    begin_across(pending);
  }
  return pending.messages.follow(
      [&](device::Stream& stream) { context.on_stream(stream, [&] { fold(context, pending); }); });
}

void OrderedReduction::cross_nodes(ops::Context& context, Pending& pending) {
  if (pending.is_inside) {
    pending.messages.wait();
    fold_inside(context, pending);
    begin_across(pending);
  }
}

void OrderedReduction::wait(Pending& pending) {
  require(!pending.is_inside, "a reduction has not crossed nodes");
  pending.messages.wait();
}

void OrderedReduction::fold_inside(ops::Context& context, const Pending& pending) const {
  for (const std::vector<TensorView>& parts : pending.parts) {
    ops::fold(context, parts, inside_.steps);
  }
}

void OrderedReduction::fold(ops::Context& context, const Pending& pending) const {
  ops::fold(context, pending.parts.front(), across_.steps);
}

void OrderedReduction::fold_into(ops::Context& context, const Pending& pending,
                                 const TensorView& sum) const {
  ops::fold_into(context, pending.parts.front(), across_.steps, sum);
}

namespace {

/// Starts to send this rank's tensors to each of `peers` ranks that lie `stride` apart, the first
/// of which is `first`, and to receive theirs. tensors_of(rank) lists those that a rank holds.
template <typename TensorsOf>
Request begin_gather(Communicator& group, std::int64_t first, std::int64_t peers,
                     std::int64_t stride, const TensorsOf& tensors_of) {
  const std::int64_t self = (group.rank() - first) / stride;
  std::vector<Incoming> receives;
  std::vector<Outgoing> sends;
  for (std::int64_t step = 1; step < peers; ++step) {
    const std::int64_t from = first + (self + peers - step) % peers * stride;
    for (const TensorView& tensor : tensors_of(from)) {
      receives.push_back({.payload = tensor, .peer = from});
    }
  }
  for (std::int64_t step = 1; step < peers; ++step) {
    for (const TensorView& tensor : tensors_of(group.rank())) {
      sends.push_back({.payload = tensor, .peer = first + (self + step) % peers * stride});
    }
  }
  return group.exchange(sends, receives, Tag::kGather);
}

/// The slices of ranks that lie `stride` apart; none that is empty.
std::vector<TensorView> slices_of(const TensorView& tensor, std::span<const grid::Range> slices,
                                  const grid::Range& ranks, std::int64_t stride = 1) {
  std::vector<TensorView> found;
  for (std::int64_t r = ranks.begin; r < ranks.end; r += stride) {
    const grid::Range& slice = slices[static_cast<std::size_t>(r)];
    if (slice.count() > 0) {
      found.push_back(tensor.flat_slice(slice.begin, slice.count()));
    }
  }
  return found;
}

}  // namespace

Request begin_all_gather_slices(Communicator& group, TensorView tensor,
                                std::span<const grid::Range> slices) {
  return begin_gather(group, 0, group.size(), 1, [&](std::int64_t rank) {
    return slices_of(tensor, slices, {rank, rank + 1});
  });
}

SliceGather::SliceGather(Communicator& group, TensorView tensor,
                         std::span<const grid::Range> slices, std::int64_t node_ranks)
    : group_(&group),
      tensor_(tensor),
      slices_(slices.begin(), slices.end()),
      node_ranks_(node_ranks) {
  messages_ = begin_gather(group, group.rank() % node_ranks, group.size() / node_ranks, node_ranks,
                           [&](std::int64_t rank) {
                             return slices_of(tensor, slices, {rank, rank + 1});
                           });
  is_across_ = node_ranks > 1;
  // All ranks start the messages inside nodes at the same place in their order, also those that
  // have none across nodes.
  bool all_cross = is_across_;
  for (std::int64_t number = 0; all_cross && number < node_ranks; ++number) {
    all_cross = !slices_of(tensor, slices, {number, group.size()}, node_ranks).empty();
  }
  if (all_cross && messages_.follow([](device::Stream& /*stream*/) {})) {
    begin_inside();
  }
}

void SliceGather::begin_inside() {
  is_across_ = false;
  messages_ = begin_gather(
      *group_, group_->rank() / node_ranks_ * node_ranks_, node_ranks_, 1, [&](std::int64_t rank) {
        return slices_of(tensor_, slices_, {rank % node_ranks_, group_->size()}, node_ranks_);
      });
}

void SliceGather::enter_nodes() {
  if (is_across_) {
    messages_.wait();
    begin_inside();
  }
}

}  // namespace strata::comm
