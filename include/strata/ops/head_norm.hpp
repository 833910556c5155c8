#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/row_norm.hpp"

namespace strata::ops {

class Context;

struct HeadNorm {
  double epsilon = 1e-6;
  WeightOffset offset = WeightOffset::kZero;
};

/// Sums over all shards, for a norm of all heads where qkv has those of one shard: every row's sum
/// for its queries, then for its keys. Empty: qkv has all heads.
/// Shapes: rows x 2, in compute_dtype().
struct HeadSums {
  ConstTensorView squares;   ///< of head_norm_squares()
  ConstTensorView products;  ///< of head_norm_products(), for backward
  /// Elements of the queries and keys of a row, over all shards.
  std::int64_t query_width = 0;
  std::int64_t key_width = 0;
};

/// RMS norm of the queries and keys of attention: y = qkv with query and key heads divided by their
/// root mean square and multiplied by a weight, as row_norm_forward() with Center::kZero; values
/// are copied. A weight of head_size elements serves all heads, each of which has its own root mean
/// square. A weight of as many elements as the queries (or keys) of a row, in their order, divides
/// all of them by one root mean square. y may be qkv.
/// Shapes: qkv, y rows x qkv_width, query_weight head_size or heads * head_size, key_weight
/// head_size or kv_heads * head_size, all of one dtype. Source: Henry et al., "Query-key
/// normalization for transformers", arXiv 2010.04245; of each head: Qwen team, "Qwen3 technical
/// report", arXiv 2505.09388; of all heads: Team OLMo, "2 OLMo 2 Furious", arXiv 2501.00656.
void head_norm_forward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                       const HeadNorm& norm, const TensorView& y, const HeadSums& sums = {});

/// Turns dqkv from the gradient of y to that of qkv, in place; dquery_weight, dkey_weight = (or +=)
/// the sums over rows, and over heads where a weight serves all of them. Recomputes the root mean
/// squares from qkv. An empty dquery_weight or dkey_weight is not computed.
/// Shapes: as forward; dqkv as qkv; dquery_weight, dkey_weight as the weights, in compute_dtype().
void head_norm_backward(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                        const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                        const HeadNorm& norm, const TensorView& dqkv,
                        const TensorView& dquery_weight, const TensorView& dkey_weight,
                        Accumulate accumulate = Accumulate::kOverwrite, const HeadSums& sums = {});

/// One shard's part of HeadSums::squares: the sums of squares of the queries and keys of each row.
void head_norm_squares(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                       const TensorView& squares);

/// One shard's part of HeadSums::products: the sums of dqkv weight qkv, where dqkv is the gradient
/// of y and the weight 1 more with WeightOffset::kOne. Shapes: weights for all heads.
void head_norm_products(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                        const ConstTensorView& query_weight, const ConstTensorView& key_weight,
                        const HeadNorm& norm, const ConstTensorView& dqkv,
                        const TensorView& products);

}  // namespace strata::ops
