#include "strata/device/host_copy.hpp"

#include "strata/device/buffer.hpp"

namespace strata::device {

HostCopy::HostCopy(const ConstTensorView& tensor) : tensor_(tensor), view_(tensor) {
  if (tensor.place() == Place::kHost) {
    return;
  }
  if (!tensor.empty()) {
    memory_ = std::make_unique<PinnedBuffer>(tensor.bytes());
  }
  view_ = {memory_ ? memory_->raw() : nullptr, tensor.shape(), tensor.dtype()};
}

void HostCopy::update(Stream& stream) {
  if (memory_ != nullptr) {
    copy_tensor(tensor_, {memory_->raw(), tensor_.shape(), tensor_.dtype()}, stream);
  }
}

}  // namespace strata::device
