#include "strata/device/host_copy.hpp"

#include <algorithm>

namespace strata::device {

HostCopy::HostCopy(const ConstTensorView& tensor, const Device& device)
    : tensor_(tensor), view_(tensor) {
  if (tensor.memory_space() == MemorySpace::kHost) {
    return;
  }
  if (!tensor.empty()) {
    memory_ = std::make_unique<PinnedBuffer>(device, tensor.bytes());
  }
  view_ = {memory_ ? memory_->raw() : nullptr, tensor.shape(), tensor.dtype()};
}

void HostCopy::update(Stream& stream) {
  if (memory_ != nullptr) {
    copy_tensor(tensor_, {memory_->raw(), tensor_.shape(), tensor_.dtype()}, stream);
  }
}

HostView::HostView(const ConstTensorView& tensor, Stream& stream) : view_(tensor) {
  if (tensor.memory_space() == MemorySpace::kHost) {
    return;
  }
  memory_ = Buffer(Device::cpu(), tensor.bytes());
  const TensorView copy = memory_.view(0, tensor.shape(), tensor.dtype());
  copy_tensor(tensor, copy, stream);
  stream.synchronize();
  view_ = copy;
}

void write_from_host(
    const TensorView& tensor,
    const std::function<void(std::int64_t first, const TensorView& piece)>& write) {
  const std::int64_t count = tensor.count();
  if (tensor.memory_space() == MemorySpace::kHost) {
    if (count > 0) {
      write(0, tensor.reshaped(Shape{count}));
    }
    return;
  }
  constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;
  const std::int64_t most = std::min(count, kPieceBytes / size_bytes(tensor.dtype()));
  const Buffer memory(Device::cpu(), most * size_bytes(tensor.dtype()));
  for (std::int64_t first = 0; first < count; first += most) {
    const std::int64_t elements = std::min(most, count - first);
    const TensorView piece = memory.view(0, Shape{elements}, tensor.dtype());
    write(first, piece);
    copy_tensor(piece, tensor.flat_slice(first, elements));
  }
}

}  // namespace strata::device
