#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"

#include "attention/cudnn_attention_graph.hpp"
#include "cudnn/operation_graph.hpp"

// Included only where cuDNN's header was found.
namespace strata::ops::cuda {

/// Determines cuDNN's kernel and so the bits of the result. All tensors are bfloat16 except
/// log_sums.
struct CudnnAttention {
  AttentionPass pass = AttentionPass::kForward;
  AttentionShape shape;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const CudnnAttention&, const CudnnAttention&) = default;
};

/// Addresses of attention's tensors, aligned to kLibraryAlignmentBytes. Shapes: as
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

/// Cache of cuDNN's attention plans; a plan is made when a shape first occurs. The library outlives
/// it.
class CudnnAttentionPlans {
 public:
  /// Notes in `kernels` what runs each shape; it outlives this.
  /// Throws: Error(kPeer) where the library was found but lacks a function.
  CudnnAttentionPlans(const CudnnLibrary& cudnn, KernelsUsed& kernels)
      : library_(cudnn), kernels_(kernels) {}
  CudnnAttentionPlans(const CudnnAttentionPlans&) = delete;
  CudnnAttentionPlans& operator=(const CudnnAttentionPlans&) = delete;

  /// Workspace of a pass; nothing where the library is missing or does not support it.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] std::optional<std::int64_t> workspace_bytes(const CudnnAttention& attention);
  /// Enqueues a pass that has workspace_bytes(). False, with nothing enqueued, where the library
  /// refuses it after all; workspace_bytes() is then empty from here on.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] bool run(const CudnnAttention& attention, const AttentionAddresses& at);

 private:
  struct Prepared {
    AttentionPart part;
    AttentionTensors tensors;
    GraphPlan plan;
    /// Size of the sums of y dy, which precede the plan's workspace.
    std::int64_t corrections_bytes = 0;
  };

  [[nodiscard]] std::optional<Prepared>& prepared(const CudnnAttention& attention);
  [[nodiscard]] std::optional<Prepared> prepare(const CudnnAttention& attention) const;
  [[nodiscard]] bool run_part(const Prepared& parts, std::int64_t part,
                              const AttentionAddresses& at) const;

  GraphLibrary library_;
  KernelsUsed& kernels_;
  /// Empty where the library does not support the key.
  std::map<CudnnAttention, std::optional<Prepared>> prepared_;
};

}  // namespace strata::ops::cuda
