#include "layers/shard_parts.hpp"

#include <vector>

#include "strata/ops/elementwise.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::nn {

ShardParts<TensorSpec> shard_parts(const PassShape& pass, std::int64_t elements) {
  const std::int64_t part = pass.shards.count == 1 ? 0 : elements;
  const DType dtype = compute_dtype(pass.dtype);
  return {.all_shards = {{pass.shards.count, part}, dtype},
          .own_shards = {{pass.shards.own.count(), part}, dtype}};
}

TensorView sum_blocks(const LayerPass& pass, const ShardParts<TensorView>& parts, PartsMade made) {
  if (made == PartsMade::kOwnShards) {
    pass.shards.all_gather_parts(parts.own_shards, parts.all_shards);
  }
  const std::int64_t shards = pass.shards.shards();
  const std::int64_t elements = parts.all_shards.count() / shards;
  std::vector<TensorView> blocks;
  for (std::int64_t s = 0; s < shards; ++s) {
    blocks.push_back(parts.all_shards.flat_slice(s * elements, elements));
  }
  ops::fold(pass.context, blocks, pass.shards.steps());
  return blocks.front();
}

void add_gradient(const LayerPass& pass, const TensorView& sum, const TensorView& gradient) {
  if (pass.accumulate == ops::Accumulate::kAdd) {
    ops::add(pass.context, sum, gradient);
  } else {
    ops::copy(pass.context, sum, gradient);
  }
}

void sum_shard_parts(const LayerPass& pass, const ShardParts<TensorView>& parts, PartsMade made,
                     std::span<const SharedGradient> gradients) {
  const TensorView sum = sum_blocks(pass, parts, made);
  for (const auto& [gradient, first_element] : gradients) {
    if (!gradient.empty()) {
      add_gradient(pass, sum.flat_slice(first_element, gradient.count()), gradient);
    }
  }
}

}  // namespace strata::nn
