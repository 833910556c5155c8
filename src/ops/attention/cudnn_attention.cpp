#include "attention/cudnn_attention.hpp"

#ifdef STRATA_HAVE_CUDNN

#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "attention/cudnn_attention_plans.hpp"
#include "checks.hpp"
#include "cuda/aligned.hpp"
#include "cuda/resources.hpp"
#include "cuda/stream.hpp"

namespace strata::ops::cuda {
namespace {

CudnnAttentionPlans& library_of(Context& context) {
  auto& library = context.cuda_resources().cudnn_attention_plans();
  if (library == nullptr) {
    library = {new CudnnAttentionPlans(cudnn_of(context), context.cuda_resources().kernels()),
               [](CudnnAttentionPlans* made) { delete made; }};
  }
  return *library;
}

void note_own(Context& context, const char* why) {
  KernelsUsed& kernels = context.cuda_resources().kernels();
  constexpr std::string_view kName = "attention";
  if (!kernels.contains(kName)) {
    kernels.emplace(kName, fmt::format("own kernels, {}", why));
  }
}

/// Whether cuDNN has kernels for a tensor's dtype, the scores and a mask.
bool is_for_cudnn(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                  const AttentionMask& mask) {
  if (qkv.dtype() != DType::kBfloat16) {
    note_own(context, "as cuDNN is used for bfloat16");
    return false;
  }
  if (shape.softcap > 0.0) {
    note_own(context, "as cuDNN is used for scores without a cap");
    return false;
  }
  if (mask.hides_any()) {
    note_own(context, "as cuDNN is used where a token sees all before it");
    return false;
  }
  return true;
}

/// One pass by cuDNN.
class LibraryPass {
 public:
  LibraryPass(Context& context, AttentionPass pass, const AttentionShape& shape)
      : context_(context),
        attention_{pass, shape},
        tensors_(context, "copying attention's tensor") {}

  using Address = std::byte* AttentionAddresses::*;
  void reads(const ConstTensorView& tensor, Address at) {
    require_memory_space(context_, tensor);
    tensors_.reads(tensor, at_.*at);
  }
  void writes(const TensorView& tensor, Address at) {
    require_memory_space(context_, tensor);
    tensors_.writes(tensor, at_.*at);
  }
  /// Whether cuDNN runs the pass.
  [[nodiscard]] bool run() {
    if (context_.cuda_resources().options().attention_kernels == LibraryKernels::kOwn) {
      note_own(context_, "as numerics.attention is own");
      return false;
    }
    CudnnAttentionPlans& library = library_of(context_);
    const std::optional<std::int64_t> workspace_bytes = library.workspace_bytes(attention_);
    if (!workspace_bytes) {
      return false;
    }
    at_.workspace = tensors_.place(*workspace_bytes);
    if (!library.run(attention_, at_)) {
      return false;
    }
    tensors_.finish();
    return true;
  }

 private:
  Context& context_;
  CudnnAttention attention_;
  AttentionAddresses at_;
  AlignedTensors tensors_;
};

}  // namespace

bool cudnn_attention_forward(Context& context, const AttentionShape& shape,
                             const ConstTensorView& qkv, const TensorView& y,
                             const TensorView& log_sums, const AttentionMask& mask) {
  if (!is_for_cudnn(context, shape, qkv, mask)) {
    return false;
  }
  LibraryPass pass(context, AttentionPass::kForward, shape);
  pass.reads(qkv, &AttentionAddresses::qkv);
  pass.writes(y, &AttentionAddresses::y);
  pass.writes(log_sums, &AttentionAddresses::log_sums);
  return pass.run();
}

bool cudnn_attention_backward(Context& context, const AttentionShape& shape,
                              const ConstTensorView& qkv, const ConstTensorView& y,
                              const ConstTensorView& log_sums, const ConstTensorView& dy,
                              const TensorView& dqkv, const AttentionMask& mask) {
  if (!is_for_cudnn(context, shape, qkv, mask)) {
    return false;
  }
  LibraryPass pass(context, AttentionPass::kBackward, shape);
  pass.reads(qkv, &AttentionAddresses::qkv);
  pass.reads(y, &AttentionAddresses::y);
  pass.reads(log_sums, &AttentionAddresses::log_sums);
  pass.reads(dy, &AttentionAddresses::dy);
  pass.writes(dqkv, &AttentionAddresses::dqkv);
  return pass.run();
}

}  // namespace strata::ops::cuda

#endif
