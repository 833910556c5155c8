#ifdef STRATA_HAVE_CUDA

#include "cuda/aligned.hpp"

#include "cuda/ops.hpp"
#include "cuda/stream.hpp"

namespace strata::ops::cuda {

bool AlignedTensors::Operand::is_ready() const {
  return tensor.dtype() == dtype &&
         reinterpret_cast<std::uintptr_t>(tensor.raw()) % kLibraryAlignmentBytes == 0;
}

std::int64_t AlignedTensors::Operand::copied_bytes() const {
  return is_ready() ? 0 : line_bytes(tensor.count() * size_bytes(dtype));
}

AlignedTensors::AlignedTensors(Context& context, const char* what)
    : context_(context), what_(what) {}

void AlignedTensors::reads(const ConstTensorView& tensor, std::byte*& at) {
  reads_as(tensor.dtype(), tensor, at);
}

void AlignedTensors::reads_as(DType dtype, const ConstTensorView& tensor, std::byte*& at) {
  operands_.push_back({tensor, dtype, true, TensorView(), &at});
}

void AlignedTensors::writes(const TensorView& tensor, std::byte*& at) {
  operands_.push_back({tensor, tensor.dtype(), false, tensor, &at});
}

void AlignedTensors::updates(const TensorView& tensor, std::byte*& at) {
  operands_.push_back({tensor, tensor.dtype(), true, tensor, &at});
}

std::byte* AlignedTensors::place(std::int64_t bytes) {
  std::int64_t copied_bytes = 0;
  for (const Operand& operand : operands_) {
    copied_bytes += operand.copied_bytes();
  }
  const std::int64_t all_bytes = copied_bytes + bytes;
  std::byte* free = all_bytes == 0 ? nullptr : scratch_of<std::byte>(context_, all_bytes);
  for (const Operand& operand : operands_) {
    if (operand.is_ready()) {
      *operand.at = const_cast<std::byte*>(operand.tensor.raw());
      continue;
    }
    *operand.at = free;
    free += operand.copied_bytes();
    if (!operand.is_read) {
      continue;
    }
    if (operand.tensor.dtype() == operand.dtype) {
      copy(*operand.at, operand.tensor);
    } else {
      cuda::convert(context_, operand.tensor,
                    TensorView(*operand.at, operand.tensor.shape(), operand.dtype,
                               operand.tensor.memory_space()));
    }
  }
  return free;
}

void AlignedTensors::finish() const {
  for (const Operand& operand : operands_) {
    if (!operand.result.empty() && !operand.is_ready()) {
      const TensorView& result = operand.result;
      copy(result.raw(),
           ConstTensorView(*operand.at, result.shape(), result.dtype(), result.memory_space()));
    }
  }
}

void AlignedTensors::copy(std::byte* to, const ConstTensorView& from) const {
  check(cudaMemcpyAsync(to, from.raw(), static_cast<std::size_t>(from.bytes()),
                        cudaMemcpyDeviceToDevice, stream_of(context_)),
        what_);
}

}  // namespace strata::ops::cuda

#endif
