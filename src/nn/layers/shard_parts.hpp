#pragma once

#include <cstdint>
#include <span>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// Partial gradients of parameters that all shards share, a block for each shard.
template <typename Tensor>
struct ShardParts {
  Tensor all_shards;
  Tensor own_shards;
};

/// Memory for blocks of `elements`; with one shard nothing.
[[nodiscard]] ShardParts<TensorSpec> shard_parts(const PassShape& pass, std::int64_t elements);

/// A gradient and where in a block its partial gradient begins.
struct SharedGradient {
  TensorView gradient;  ///< empty: not wanted
  std::int64_t first_element = 0;
};

/// The blocks that a rank has written.
enum class PartsMade { kAllShards, kOwnShards };

/// Sums the blocks over the shards, in the first of all_shards, and returns that. Communication:
/// with kOwnShards one all-gather over the tensor group.
TensorView sum_blocks(const LayerPass& pass, const ShardParts<TensorView>& parts, PartsMade made);

/// gradient = (or +=, as pass.accumulate says) sum.
void add_gradient(const LayerPass& pass, const TensorView& sum, const TensorView& gradient);

/// Sums the blocks over the shards into the gradients, by sum_blocks() and add_gradient().
void sum_shard_parts(const LayerPass& pass, const ShardParts<TensorView>& parts, PartsMade made,
                     std::span<const SharedGradient> gradients);

}  // namespace strata::nn
