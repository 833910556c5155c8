#pragma once

#include <span>

#include "strata/nn/layer.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::nn {

/// Partial gradients of parameters that all shards share, a block for each shard.
template <typename Tensor>
struct ShardParts {
  Tensor all_shards;
  Tensor own_shards;
};

/// Memory for blocks of `elements`; with one shard nothing.
[[nodiscard]] inline ShardParts<TensorSpec> shard_parts(const PassShape& pass,
                                                        std::int64_t elements) {
  const std::int64_t part = pass.shards.count == 1 ? 0 : elements;
  const DType dtype = compute_dtype(pass.dtype);
  return {.all_shards = {{pass.shards.count, part}, dtype},
          .own_shards = {{pass.shards.own.count(), part}, dtype}};
}

/// Sums the blocks over the shards into the gradients, which lie one after the other in a block.
/// `made`: all_shards, or own_shards where other ranks made the other
/// blocks. Communication: with own_shards one all-gather over the tensor group.
inline void sum_shard_parts(const LayerPass& pass, const ShardParts<TensorView>& parts,
                            const TensorView& made, std::span<const TensorView> gradients,
                            ops::Accumulate accumulate) {
  if (made.raw() != parts.all_shards.raw()) {
    pass.shards.all_gather_parts(made, parts.all_shards);
  }
  const std::int64_t shards = pass.shards.shards();
  const std::int64_t elements = parts.all_shards.count() / shards;
  std::vector<TensorView> blocks;
  for (std::int64_t s = 0; s < shards; ++s) {
    blocks.push_back(parts.all_shards.flat_slice(s * elements, elements));
  }
  ops::fold(pass.context, blocks, pass.shards.steps());
  std::int64_t at = 0;
  for (const TensorView& gradient : gradients) {
    const TensorView sum = blocks.front().flat_slice(at, gradient.count());
    at += gradient.count();
    if (accumulate == ops::Accumulate::kAdd) {
      ops::add(pass.context, sum, gradient);
    } else {
      ops::copy(pass.context, sum, gradient);
    }
  }
}

}  // namespace strata::nn
