#include "cuda_library_attention.hpp"

#ifdef STRATA_HAVE_CUDNN

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "checks.hpp"
#include "cuda_attention_library.hpp"
#include "cuda_kernel.hpp"

// cuDNN gets addresses that no choice of its kernels follows from: a tensor that begins elsewhere
// goes through a copy.
namespace strata::ops::cuda {
namespace {

AttentionLibrary& library_of(Context& context) {
  auto& library = context.cuda_state().attention_library();
  if (library == nullptr) {
    library = {new AttentionLibrary(stream_of(context)),
               [](AttentionLibrary* made) { delete made; }};
  }
  return *library;
}

using Address = std::byte* AttentionAddresses::*;

/// One pass by cuDNN.
class LibraryPass {
 public:
  LibraryPass(Context& context, AttentionPass pass, const AttentionShape& shape)
      : context_(context), stream_(stream_of(context)), attention_{pass, shape} {}

  /// The pass reads the tensor from what is then in `at`.
  void reads(const ConstTensorView& tensor, Address at) {
    tensors_.push_back({tensor, TensorView(), at});
  }
  void writes(const TensorView& tensor, Address at) { tensors_.push_back({tensor, tensor, at}); }
  /// Whether cuDNN did it.
  [[nodiscard]] bool run() {
    for (const Operand& operand : tensors_) {
      require_place(context_, operand.tensor);
    }
    if (context_.cuda_state().options().attention_kernels == LibraryKernels::kOwn) {
      return false;
    }
    const std::optional<std::int64_t> workspace = library_of(context_).workspace_bytes(attention_);
    if (!workspace) {
      return false;
    }
    place(*workspace);
    for (const Operand& operand : tensors_) {
      if (operand.result.empty()) {
        copy(at_.*operand.at, operand.tensor.raw(), operand.tensor.bytes());
      }
    }
    if (!library_of(context_).run(attention_, at_)) {
      return false;
    }
    for (const Operand& operand : tensors_) {
      if (!operand.result.empty()) {
        copy(operand.result.raw(), at_.*operand.at, operand.tensor.bytes());
      }
    }
    return true;
  }

 private:
  struct Operand {
    ConstTensorView tensor;
    /// The same where it is written.
    TensorView result;
    Address at;

    [[nodiscard]] bool is_aligned() const {
      return reinterpret_cast<std::uintptr_t>(tensor.raw()) % OperationGraph::kAlignmentBytes == 0;
    }
    /// What a copy takes of the scratch.
    [[nodiscard]] std::int64_t copied_bytes() const {
      constexpr std::int64_t kLine = 256;
      return is_aligned() ? 0 : (tensor.bytes() + kLine - 1) / kLine * kLine;
    }
  };

  void place(std::int64_t workspace_bytes) {
    std::int64_t bytes = workspace_bytes;
    for (const Operand& operand : tensors_) {
      bytes += operand.copied_bytes();
    }
    std::byte* free = scratch_of<std::byte>(context_, bytes);
    for (const Operand& operand : tensors_) {
      at_.*operand.at = operand.is_aligned() ? const_cast<std::byte*>(operand.tensor.raw()) : free;
      free += operand.copied_bytes();
    }
    at_.workspace = free;
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
    if (to != from) {
      check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                            stream_),
            "copying attention's tensor");
    }
  }

  Context& context_;
  cudaStream_t stream_;
  LibraryAttention attention_;
  std::vector<Operand> tensors_;
  AttentionAddresses at_;
};

}  // namespace

bool library_attention_forward(Context& context, const AttentionShape& shape,
                               const ConstTensorView& qkv, const TensorView& y,
                               const TensorView& log_sums) {
  if (qkv.dtype() != DType::kBfloat16) {
    return false;
  }
  LibraryPass pass(context, AttentionPass::kForward, shape);
  pass.reads(qkv, &AttentionAddresses::qkv);
  pass.writes(y, &AttentionAddresses::y);
  pass.writes(log_sums, &AttentionAddresses::log_sums);
  return pass.run();
}

bool library_attention_backward(Context& context, const AttentionShape& shape,
                                const ConstTensorView& qkv, const ConstTensorView& y,
                                const ConstTensorView& log_sums, const ConstTensorView& dy,
                                const TensorView& dqkv) {
  if (qkv.dtype() != DType::kBfloat16) {
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

#else

namespace strata::ops::cuda {

bool library_attention_forward(Context&, const AttentionShape&, const ConstTensorView&,
                               const TensorView&, const TensorView&) {
  return false;
}

bool library_attention_backward(Context&, const AttentionShape&, const ConstTensorView&,
                                const ConstTensorView&, const ConstTensorView&,
                                const ConstTensorView&, const TensorView&) {
  return false;
}

}  // namespace strata::ops::cuda

#endif
