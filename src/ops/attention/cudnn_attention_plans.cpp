#ifdef STRATA_HAVE_CUDNN

#include "attention/cudnn_attention_plans.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "attention/cudnn_attention_limits.hpp"
#include "cuda/aligned.hpp"

namespace strata::ops::cuda {
namespace {

constexpr std::int64_t kStoredBytes = 2;

/// cuDNN's kernels read 16 bytes of a head at a time.
constexpr std::int64_t kElementsAtOnce = 8;

/// Before this version a backward pass over a number of tokens that tiles of 128 do not divide
/// could go wrong. Source: NVIDIA's cudnn-frontend, scaled_dot_product_flash_attention.h, which
/// gives lengths to such versions.
constexpr std::int64_t kFirstOfAnyTokens = 91501;
constexpr std::int64_t kTileTokens = 128;

bool is_for_library(const CudnnAttention& attention, std::int64_t version) {
  const AttentionShape& shape = attention.shape;
  return shape.rows() > 0 && shape.heads() > 0 && shape.head_size > 0 &&
         shape.head_size % kElementsAtOnce == 0 &&
         shape.rows() * shape.qkv_width() <= std::numeric_limits<int>::max() &&
         (attention.pass == AttentionPass::kForward ||
          (is_order_recognisable(shape) &&
           (version >= kFirstOfAnyTokens || shape.tokens % kTileTokens == 0)));
}

std::string text_of(const CudnnAttention& attention) {
  const AttentionShape& shape = attention.shape;
  return fmt::format("attention's {} pass over {} x {} tokens, {} heads of {}",
                     attention.pass == AttentionPass::kForward ? "forward" : "backward",
                     shape.sequences, shape.tokens, shape.heads(), shape.head_size);
}

}  // namespace

std::optional<CudnnAttentionPlans::Prepared> CudnnAttentionPlans::prepare(
    const CudnnAttention& attention) const {
  const CudnnLibrary& cudnn = library_.cudnn();
  if (!cudnn.loaded() || !is_for_library(attention, cudnn.version())) {
    return std::nullopt;
  }
  const AttentionPart part(attention.pass, attention.shape);
  const bool is_backward = attention.pass == AttentionPass::kBackward;
  if (is_backward && part.weights() > AttentionPart::kMaxWeights) {
    return std::nullopt;
  }
  OperationGraph graph(library_);
  const AttentionTensors tensors = add_attention(attention.pass, part, graph);
  std::optional<GraphPlan> plan;
  try {
    plan = plan_attention(attention.pass, part, graph, {.handle = cudnn.handle()});
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", text_of(attention), error.what());
  }
  if (!plan) {
    return std::nullopt;
  }
  const std::int64_t bytes =
      part.batches * part.heads * part.tokens * static_cast<std::int64_t>(sizeof(float));
  return Prepared{part, tensors, std::move(*plan), is_backward ? line_bytes(bytes) : 0};
}

std::optional<CudnnAttentionPlans::Prepared>& CudnnAttentionPlans::prepared(
    const CudnnAttention& attention) {
  const auto found = prepared_.find(attention);
  if (found != prepared_.end()) {
    return found->second;
  }
  std::optional<Prepared>& made = prepared_.emplace(attention, prepare(attention)).first->second;
  kernels_[text_of(attention)] = made ? fmt::format("cuDNN's kernel {}", made->plan.choice)
                                 : library_.cudnn().loaded() ? std::string(kUnsupported)
                                                             : std::string(kCudnnNotFound);
  return made;
}

std::optional<std::int64_t> CudnnAttentionPlans::workspace_bytes(const CudnnAttention& attention) {
  const std::optional<Prepared>& parts = prepared(attention);
  return parts ? std::optional(parts->corrections_bytes + parts->plan.workspace_bytes)
               : std::nullopt;
}

bool CudnnAttentionPlans::run_part(const Prepared& parts, std::int64_t part,
                                   const AttentionAddresses& at) const {
  const AttentionPart& layout = parts.part;
  const AttentionTensors& tensors = parts.tensors;
  const float masked = std::numeric_limits<float>::lowest();
  const float one = 1.0F;
  const std::int64_t qkv = layout.qkv_offset(part) * kStoredBytes;
  const std::int64_t y = layout.y_offset(part) * kStoredBytes;
  const std::int64_t key = qkv + layout.key_offset * kStoredBytes;
  const std::int64_t value = key + layout.value_offset * kStoredBytes;
  std::vector<GraphArgument> arguments{
      {tensors.queries, at.qkv + qkv},
      {tensors.keys, at.qkv + key},
      {tensors.values, at.qkv + value},
      {tensors.y, at.y + y},
      {tensors.log_sums,
       at.log_sums + layout.log_sums_offset(part) * static_cast<std::int64_t>(sizeof(float))},
      {tensors.scale, &layout.scale},
      {tensors.masked, &masked}};
  if (tensors.dy != 0) {
    arguments.insert(arguments.end(), {{tensors.dy, at.dy + y},
                                       {tensors.dqueries, at.dqkv + qkv},
                                       {tensors.dkeys, at.dqkv + key},
                                       {tensors.dvalues, at.dqkv + value},
                                       {tensors.corrections, at.workspace},
                                       {tensors.one, &one}});
  }
  return cuda::run(library_, parts.plan, arguments, at.workspace + parts.corrections_bytes);
}

bool CudnnAttentionPlans::run(const CudnnAttention& attention, const AttentionAddresses& at) {
  std::optional<Prepared>& parts = prepared(attention);
  require(parts.has_value(), "cuDNN does not support this attention");
  for (std::int64_t part = 0; part < parts->part.parts(); ++part) {
    if (!run_part(*parts, part, at)) {
      // Parts differ only in addresses, so cuDNN supports all or none.
      require(part == 0, "cuDNN refused part {} of an attention", part);
      parts.reset();
      kernels_[text_of(attention)] = kUnsupported;
      return false;
    }
  }
  return true;
}

}  // namespace strata::ops::cuda

#endif
