#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>

#include "strata/ops/attention.hpp"

#include "attention/cudnn_attention_limits.hpp"
#include "cudnn/operation_graph.hpp"

// Attention in bfloat16 as graphs of cuDNN's. Included only where cuDNN's
// header was found.
namespace strata::ops::cuda {

enum class AttentionPass { kForward, kBackward };

/// The part of a pass that one graph covers. cuDNN wants a constant stride between heads and
/// between batches. With one query head for each key-value head, batches are sequences and heads
/// are key-value heads; otherwise batches are the key-value heads of one sequence, and heads their
/// query heads. cuDNN's backward pass stores the gradients of a part's weights in bfloat16; a part
/// has at most kMaxWeights of them.
struct AttentionPart {
  static constexpr std::int64_t kMaxWeights = kMaxLibraryWeights;

  AttentionPart(AttentionPass pass, const AttentionShape& shape);

  /// Number of weight gradients of a part.
  [[nodiscard]] std::int64_t weights() const { return batches * heads * tokens * tokens; }
  /// Number of parts of the pass.
  [[nodiscard]] std::int64_t parts() const { return sequence_parts * head_parts; }
  /// Offset of a part in elements, in qkv, y and log_sums.
  [[nodiscard]] std::int64_t qkv_offset(std::int64_t part) const {
    return part / head_parts * qkv_sequence + part % head_parts * batches * qkv_strides[0];
  }
  [[nodiscard]] std::int64_t y_offset(std::int64_t part) const {
    return part / head_parts * y_sequence + part % head_parts * batches * y_strides[0];
  }
  [[nodiscard]] std::int64_t log_sums_offset(std::int64_t part) const {
    return part * batches * heads * tokens;
  }

  std::int64_t batches = 1;
  std::int64_t heads = 1;  ///< query heads of a batch
  std::int64_t kv_heads = 1;
  std::int64_t tokens = 1;
  std::int64_t head_size = 1;
  float scale = 1.0F;  ///< of the scores
  /// Strides of batch, head and token.
  std::array<std::int64_t, 3> qkv_strides{};
  std::array<std::int64_t, 3> y_strides{};
  /// Elements from the first query to the first key, and from there to the first value.
  std::int64_t key_offset = 0;
  std::int64_t value_offset = 0;

  std::int64_t sequence_parts = 1;
  std::int64_t head_parts = 1;
  /// Elements from one part of the sequences to the next.
  std::int64_t qkv_sequence = 0;
  std::int64_t y_sequence = 0;
};

/// The graph tensors that need an address at run time; 0 where the pass has none.
struct AttentionTensors {
  OperationGraph::Tensor queries = 0;
  OperationGraph::Tensor keys = 0;
  OperationGraph::Tensor values = 0;
  OperationGraph::Tensor y = 0;
  OperationGraph::Tensor log_sums = 0;
  OperationGraph::Tensor dy = 0;
  OperationGraph::Tensor dqueries = 0;
  OperationGraph::Tensor dkeys = 0;
  OperationGraph::Tensor dvalues = 0;
  /// The sum of y dy of each row, float32, in the order of a part's log_sums.
  OperationGraph::Tensor corrections = 0;
  /// Scalars: the scale of the scores, the value of a masked score, and 1.
  OperationGraph::Tensor scale = 0;
  OperationGraph::Tensor masked = 0;
  OperationGraph::Tensor one = 0;
};

/// Adds a pass's operations to a graph in the pattern that cuDNN recognises as attention. The
/// backward graph has no accumulator tensor for the gradients of queries: cuDNN would add to it
/// with atomics. Without it each sum has one order. Source: Dao, "FlashAttention-2", arXiv
/// 2307.08691; cuDNN's developer guide, "Fused flash attention".
AttentionTensors add_attention(AttentionPass pass, const AttentionPart& part,
                               OperationGraph& graph);

/// The plan of a part's graph, where cuDNN has one that gives the same bits on every run.
[[nodiscard]] std::optional<GraphPlan> plan_attention(AttentionPass pass, const AttentionPart& part,
                                                      OperationGraph& graph,
                                                      const GraphTarget& target);

}  // namespace strata::ops::cuda
