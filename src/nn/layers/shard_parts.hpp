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

/// Sums the blocks over the shards into the gradients, as pass.accumulate says. Communication: with
/// kOwnShards one all-gather over the tensor group.
void sum_shard_parts(const LayerPass& pass, const ShardParts<TensorView>& parts, PartsMade made,
                     std::span<const SharedGradient> gradients);

}  // namespace strata::nn
