#ifdef STRATA_HAVE_CUDNN

#include "attention/cudnn_attention_graph.hpp"

#include <algorithm>
#include <utility>

namespace strata::ops::cuda {
namespace {

using Tensor = OperationGraph::Tensor;
using Strides = std::array<std::int64_t, 3>;

/// Builds the tensors of one part's graph.
class Builder {
 public:
  Builder(const AttentionPart& part, OperationGraph& graph) : part_(part), graph_(graph) {}

  /// A matrix of m x n elements for each of `heads` heads.
  Tensor matrices(std::int64_t heads, std::int64_t m, std::int64_t n,
                  const std::array<std::int64_t, 4>& strides, cudnnDataType_t type,
                  GraphStorage place) {
    return graph_.tensor({{part_.batches, heads, m, n}, strides, type, place});
  }
  /// The same, row-major and contiguous, between operations.
  Tensor virtual_matrices(std::int64_t m, std::int64_t n, cudnnDataType_t type) {
    return matrices(part_.heads, m, n, {part_.heads * m * n, m * n, n, 1}, type,
                    GraphStorage::kVirtual);
  }
  /// In memory: a row of `head_size` elements for each token of `heads` heads.
  Tensor rows(std::int64_t heads, const Strides& s, GraphStorage place = GraphStorage::kDevice) {
    return matrices(heads, part_.tokens, part_.head_size, {s[0], s[1], s[2], 1},
                    CUDNN_DATA_BFLOAT16, place);
  }
  /// The same with a column for each token.
  Tensor columns(std::int64_t heads, const Strides& s) {
    return matrices(heads, part_.head_size, part_.tokens, {s[0], s[1], 1, s[2]},
                    CUDNN_DATA_BFLOAT16, GraphStorage::kDevice);
  }
  /// A number for each token of each query head.
  Tensor numbers(GraphStorage place) {
    const std::int64_t t = part_.tokens;
    return matrices(part_.heads, t, 1, {part_.heads * t, t, 1, 1}, CUDNN_DATA_FLOAT, place);
  }
  /// Between operations: a matrix of queries and keys for each query head.
  Tensor scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return virtual_matrices(part_.tokens, part_.tokens, type);
  }
  /// What both passes read first. Forward multiplies with the values by rows, backward by columns.
  AttentionTensors operands(AttentionPass pass) {
    AttentionTensors all;
    all.queries = rows(part_.heads, part_.qkv_strides);
    all.keys = columns(part_.kv_heads, part_.qkv_strides);
    all.values = pass == AttentionPass::kForward ? rows(part_.kv_heads, part_.qkv_strides)
                                                 : columns(part_.kv_heads, part_.qkv_strides);
    all.y = rows(part_.heads, part_.y_strides);
    return all;
  }
  Tensor value() { return graph_.tensor({.place = GraphStorage::kValue}); }

  Tensor scored(cudnnPointwiseMode_t how, Tensor x, std::optional<Tensor> b,
                cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const Tensor y = scores(type);
    graph_.pointwise(how, x, b, y);
    return y;
  }
  /// Replaces the scores of keys after a query by `masked`.
  Tensor causal_mask(Tensor score, Tensor masked) {
    const Tensor query = scores(CUDNN_DATA_INT32);
    graph_.index(score, 2, query);
    const Tensor key = scores(CUDNN_DATA_INT32);
    graph_.index(score, 3, key);
    const Tensor is_seen = scores(CUDNN_DATA_BOOLEAN);
    graph_.pointwise(CUDNN_POINTWISE_CMP_GE, query, key, is_seen, CUDNN_DATA_BOOLEAN);
    const Tensor result = scores();
    graph_.select(score, masked, is_seen, result);
    return result;
  }
  /// The transposed scores, rounded.
  Tensor turned(Tensor score) {
    const std::int64_t t = part_.tokens;
    const Tensor result = matrices(part_.heads, t, t, {part_.heads * t * t, t * t, 1, t},
                                   CUDNN_DATA_BFLOAT16, GraphStorage::kVirtual);
    graph_.reshape(score, result);
    return result;
  }
  /// result = turned scores times rows of the query heads, added over the query heads of each
  /// key-value head.
  void into_kv(Tensor transposed_scores, Tensor rows_of_queries, Tensor result) {
    if (part_.heads == part_.kv_heads) {
      graph_.matmul(transposed_scores, rows_of_queries, result);
      return;
    }
    const Tensor of_queries = virtual_matrices(part_.tokens, part_.head_size, CUDNN_DATA_BFLOAT16);
    graph_.matmul(transposed_scores, rows_of_queries, of_queries);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, of_queries, result);
  }

 private:
  const AttentionPart& part_;
  OperationGraph& graph_;
};

AttentionTensors add_forward(const AttentionPart& part, OperationGraph& graph) {
  Builder build(part, graph);
  AttentionTensors all = build.operands(AttentionPass::kForward);
  all.log_sums = build.numbers(GraphStorage::kDevice);
  all.scale = build.value();
  all.masked = build.value();

  const Tensor products = build.scores();
  graph.matmul(all.queries, all.keys, products);
  const Tensor scaled = build.scored(CUDNN_POINTWISE_MUL, products, all.scale);
  const Tensor seen = build.causal_mask(scaled, all.masked);
  const Tensor largest = build.numbers(GraphStorage::kVirtual);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, seen, largest);
  const Tensor below = build.scored(CUDNN_POINTWISE_SUB, seen, largest);
  const Tensor exponentials = build.scored(CUDNN_POINTWISE_EXP, below, std::nullopt);
  const Tensor total = build.numbers(GraphStorage::kVirtual);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, total);
  const Tensor log_total = build.numbers(GraphStorage::kVirtual);
  graph.pointwise(CUDNN_POINTWISE_LOG, total, std::nullopt, log_total);
  graph.pointwise(CUDNN_POINTWISE_ADD, largest, log_total, all.log_sums);
  const Tensor weights =
      build.scored(CUDNN_POINTWISE_DIV, exponentials, total, CUDNN_DATA_BFLOAT16);
  graph.matmul(weights, all.values, all.y);
  return all;
}

AttentionTensors add_backward(const AttentionPart& part, OperationGraph& graph) {
  Builder build(part, graph);
  AttentionTensors all = build.operands(AttentionPass::kBackward);
  all.dy = build.rows(part.heads, part.y_strides);
  all.log_sums = build.numbers(GraphStorage::kDevice);
  all.corrections = build.numbers(GraphStorage::kDevice);
  all.dqueries = build.rows(part.heads, part.qkv_strides);
  all.dkeys = build.rows(part.kv_heads, part.qkv_strides);
  all.dvalues = build.rows(part.kv_heads, part.qkv_strides);
  all.scale = build.value();
  all.masked = build.value();
  all.one = build.value();

  // Another kernel computes the corrections first, so they are in memory.
  const Tensor products_of_y =
      build.virtual_matrices(part.tokens, part.head_size, CUDNN_DATA_FLOAT);
  graph.pointwise(CUDNN_POINTWISE_MUL, all.dy, all.y, products_of_y);
  const Tensor sums_of_y = build.numbers(GraphStorage::kVirtual);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products_of_y, sums_of_y);
  graph.pointwise(CUDNN_POINTWISE_MUL, sums_of_y, all.one, all.corrections);

  // Recompute the weights.
  const Tensor products = build.scores();
  graph.matmul(all.queries, all.keys, products);
  const Tensor scaled = build.scored(CUDNN_POINTWISE_MUL, products, all.scale);
  const Tensor seen = build.causal_mask(scaled, all.masked);
  const Tensor below = build.scored(CUDNN_POINTWISE_SUB, seen, all.log_sums);
  const Tensor weights = build.scored(CUDNN_POINTWISE_EXP, below, std::nullopt);
  build.into_kv(build.turned(weights), all.dy, all.dvalues);

  // The gradient of the softmax.
  const Tensor dweights = build.scores();
  graph.matmul(all.dy, all.values, dweights);
  const Tensor corrected = build.scored(CUDNN_POINTWISE_SUB, dweights, all.corrections);
  const Tensor dscaled = build.scored(CUDNN_POINTWISE_MUL, corrected, weights);
  const Tensor dscores = build.scored(CUDNN_POINTWISE_MUL, dscaled, all.scale);
  build.into_kv(build.turned(dscores), all.queries, all.dkeys);

  const Tensor key_rows = build.rows(part.kv_heads, part.qkv_strides, GraphStorage::kVirtual);
  graph.reshape(all.keys, key_rows);
  graph.matmul(dscores, key_rows, all.dqueries);
  return all;
}

/// The largest divisor of `count` up to `most`.
std::int64_t largest_divisor(std::int64_t count, std::int64_t most) {
  std::int64_t divisor = std::clamp<std::int64_t>(most, 1, count);
  while (count % divisor != 0) {
    --divisor;
  }
  return divisor;
}

}  // namespace

AttentionPart::AttentionPart(AttentionPass pass, const AttentionShape& shape)
    : tokens(shape.tokens),
      head_size(shape.head_size),
      scale(static_cast<float>(shape.score_scale())) {
  const std::int64_t width = shape.qkv_width();
  const std::int64_t group = (shape.queries + 2) * head_size;
  const std::int64_t most_heads = pass == AttentionPass::kForward ? shape.sequences * shape.heads()
                                                                  : kMaxWeights / (tokens * tokens);
  key_offset = shape.queries * head_size;
  value_offset = head_size;
  if (shape.queries == 1 && shape.kv_heads <= most_heads) {
    batches = largest_divisor(shape.sequences, most_heads / shape.kv_heads);
    heads = kv_heads = shape.kv_heads;
    qkv_strides = {tokens * width, group, width};
    y_strides = {tokens * shape.width(), head_size, shape.width()};
    sequence_parts = shape.sequences / batches;
  } else {
    batches = largest_divisor(shape.kv_heads, most_heads / shape.queries);
    heads = shape.queries;
    qkv_strides = {group, head_size, width};
    y_strides = {shape.queries * head_size, head_size, shape.width()};
    sequence_parts = shape.sequences;
    head_parts = shape.kv_heads / batches;
  }
  const std::int64_t sequences = shape.sequences / sequence_parts;
  qkv_sequence = sequences * tokens * width;
  y_sequence = sequences * tokens * shape.width();
}

AttentionTensors add_attention(AttentionPass pass, const AttentionPart& part,
                               OperationGraph& graph) {
  return pass == AttentionPass::kForward ? add_forward(part, graph) : add_backward(part, graph);
}

std::optional<GraphPlan> plan_attention(AttentionPass pass, const AttentionPart& part,
                                        OperationGraph& graph, const GraphTarget& target) {
  // A kernel without a buffer for the gradients of weights accumulates those of queries with
  // atomics, in any order; cuDNN's determinism note is not reliable. We recognise the others by
  // their workspace size.
  return graph.plan(target, [&](const GraphPlan& plan) {
    return pass == AttentionPass::kForward || plan.workspace_bytes >= part.weights() * 2;
  });
}

}  // namespace strata::ops::cuda

#endif
