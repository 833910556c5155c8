#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "strata/ops/attention.hpp"

#include "attention/cudnn_attention_graph.hpp"
#include "cudnn/operation_graph.hpp"

// Included by .cu files alone, where cuDNN's header was found.
namespace strata::ops::cuda {

/// What cuDNN's kernel, and with it the bits of the result, follows from. All tensors are bfloat16
/// but log_sums.
struct CudnnAttention {
  AttentionPass pass = AttentionPass::kForward;
  AttentionShape shape;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const CudnnAttention&, const CudnnAttention&) = default;
};

/// Where attention's tensors lie, all at multiples of kLibraryAlignmentBytes. Shapes: as
/// causal_attention_forward() and ..._backward(); forward has no dy and dqkv, and writes y and
/// log_sums.
struct AttentionAddresses {
  std::byte* qkv = nullptr;
  std::byte* y = nullptr;
  std::byte* log_sums = nullptr;
  std::byte* dy = nullptr;
  std::byte* dqkv = nullptr;
  /// Memory of workspace_bytes().
  std::byte* workspace = nullptr;
};

/// The attention that cuDNN, which outlives this, was asked for so far. Its kernels are made when a
/// shape first comes.
class CudnnAttentionPlans {
 public:
  /// Throws: Error(kPeer) where the library was found but lacks a function.
  explicit CudnnAttentionPlans(const CudnnLibrary& cudnn) : library_(cudnn) {}
  CudnnAttentionPlans(const CudnnAttentionPlans&) = delete;
  CudnnAttentionPlans& operator=(const CudnnAttentionPlans&) = delete;

  /// Memory that a pass works in; none where the library is not found or does not take it.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] std::optional<std::int64_t> workspace_bytes(const CudnnAttention& attention);
  /// Puts a pass that has workspace_bytes() on the stream. False where the library refuses it after
  /// all: then nothing was put there, and it has no workspace_bytes() from here on.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] bool run(const CudnnAttention& attention, const AttentionAddresses& at);

 private:
  struct Prepared {
    AttentionPart part;
    AttentionTensors tensors;
    GraphPlan plan;
    /// Of the sums of y dy, in front of the plan's workspace.
    std::int64_t corrections_bytes = 0;
  };

  [[nodiscard]] std::optional<Prepared>& prepared(const CudnnAttention& attention);
  [[nodiscard]] std::optional<Prepared> prepare(const CudnnAttention& attention) const;
  [[nodiscard]] bool run_part(const Prepared& parts, std::int64_t part,
                              const AttentionAddresses& at) const;

  GraphLibrary library_;
  /// Nothing for what the library does not take.
  std::map<CudnnAttention, std::optional<Prepared>> prepared_;
};

}  // namespace strata::ops::cuda
