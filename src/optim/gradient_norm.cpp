#include "strata/optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "strata/grid/tree.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::optim {
namespace {

/// The number of blocks of the data rank that owns the most: the first of each bucket's slices is
/// the largest.
std::int64_t most_blocks(const Ownership& owned) {
  return Ownership{owned.layout, owned.buckets, 0}.elements() / kBlock;
}

std::int64_t blocks_in(std::int64_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

}  // namespace

GradientNorm::GradientNorm(ops::Context& context, const Ownership& owned)
    : context_(context),
      owned_(owned),
      sum_of_(owned.layout.parameters.size()),
      memory_(context.device(), memory(owned).bytes),
      blocks_(memory_.view(0, Shape{most_blocks(owned)}, DType::kFloat64)),
      on_host_(blocks_, context.device()) {
  const nn::ParameterLayout& layout = owned.layout;
  struct Parts {
    std::vector<grid::Range> nodes;
    std::vector<std::pair<std::size_t, std::size_t>> at;  ///< rank, index among its nodes
  };
  std::vector<Parts> slices(layout.parameters.size());
  const std::vector<Bucket>& buckets = owned.buckets.buckets();
  const std::size_t ranks = buckets.empty() ? 0 : buckets.front().slices.size();
  nodes_.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const OwnedPiece& piece :
         Ownership{layout, owned.buckets, static_cast<std::int64_t>(r)}.pieces()) {
      const grid::SumTree tree(blocks_in(layout.parameters[piece.parameter].shape.count()));
      const grid::Range own{piece.range.begin / kBlock, blocks_in(piece.range.end)};
      for (const grid::Range& node : tree.nodes_within(own)) {
        slices[piece.parameter].nodes.push_back(node);
        slices[piece.parameter].at.emplace_back(r, nodes_[r].size());
        nodes_[r].push_back({piece.owned_offset / kBlock + node.begin - own.begin, node.count()});
      }
    }
    width_ = std::max(width_, std::ssize(nodes_[r]));
  }
  for (std::size_t p = 0; p < slices.size(); ++p) {
    const Parts& parts = slices[p];
    if (parts.nodes.empty()) {
      continue;
    }
    const auto place = [&](std::int64_t part) {
      const auto [rank, index] = parts.at[static_cast<std::size_t>(part)];
      return static_cast<std::int64_t>(rank) * width_ + static_cast<std::int64_t>(index);
    };
    const grid::Range all{0, blocks_in(layout.parameters[p].shape.count())};
    const auto first = std::ranges::find(parts.nodes, 0, &grid::Range::begin);
    sum_of_[p] = place(first - parts.nodes.begin());
    for (const ReductionStep& step : grid::reduction_steps(parts.nodes, std::span(&all, 1))) {
      steps_.push_back({place(step.into), place(step.from)});
    }
  }
}

nn::MemoryItem GradientNorm::memory(const Ownership& owned) {
  return {"gradient norm", most_blocks(owned) * size_bytes(DType::kFloat64)};
}

void GradientNorm::begin(const ConstTensorView& gradients) {
  std::int64_t done = 0;
  for (const Bucket& bucket : owned_.buckets.buckets()) {
    if (bucket.use == Bucket::Use::kBorrowed) {
      continue;
    }
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(owned_.rank)];
    const std::int64_t blocks = slice.count() / kBlock;
    ops::sum_of_squares_blocks(
        context_, gradients.flat_slice(bucket.elements.begin + slice.begin, slice.count()), kBlock,
        blocks_.flat_slice(done, blocks));
    done += blocks;
  }
  on_host_.update(context_.stream());
}

bool GradientNorm::is_finite(const ConstTensorView& tensor) {
  const std::int64_t most = blocks_.count() * kBlock;
  for (std::int64_t first = 0; first < tensor.count(); first += most) {
    const std::int64_t count = std::min(most, tensor.count() - first);
    const std::int64_t blocks = blocks_in(count);
    ops::sum_of_squares_blocks(context_, tensor.flat_slice(first, count), kBlock,
                               blocks_.flat_slice(0, blocks));
    on_host_.update(context_.stream());
    context_.stream().synchronize();
    const std::span<const double> sums =
        on_host_.view().host<double>().first(static_cast<std::size_t>(blocks));
    if (!std::ranges::all_of(sums, [](double sum) { return std::isfinite(sum); })) {
      return false;
    }
  }
  return true;
}

std::span<const double> GradientNorm::blocks() const {
  return on_host_.view().host<double>().first(static_cast<std::size_t>(owned_.elements() / kBlock));
}

std::vector<double> GradientNorm::partials() const {
  std::vector<double> sums(static_cast<std::size_t>(width_));
  if (sums.empty()) {
    return sums;  // a stage without parameters has no slices
  }
  std::ranges::transform(nodes_[static_cast<std::size_t>(owned_.rank)], sums.begin(),
                         [own = blocks()](const Node& node) {
                           return grid::sum_in_tree(
                               grid::SumTree(node.blocks),
                               own.subspan(static_cast<std::size_t>(node.first_block),
                                           static_cast<std::size_t>(node.blocks)));
                         });
  return sums;
}

std::vector<double> GradientNorm::squares(std::span<const std::span<const double>> gathered) const {
  std::vector<double> parts;
  for (const std::span<const double>& of_rank : gathered) {
    parts.insert(parts.end(), of_rank.begin(), of_rank.end());
  }
  for (const ReductionStep& step : steps_) {
    parts[static_cast<std::size_t>(step.into)] += parts[static_cast<std::size_t>(step.from)];
  }
  std::vector<double> squares;
  for (const std::optional<std::int64_t>& sum : sum_of_) {
    squares.push_back(sum ? parts[static_cast<std::size_t>(*sum)] : 0.0);
  }
  return squares;
}

}  // namespace strata::optim
