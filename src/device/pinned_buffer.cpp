#include "strata/device/pinned_buffer.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

PinnedBuffer::PinnedBuffer(std::int64_t bytes)
    : data_(static_cast<std::byte*>(cuda::allocate_pinned(bytes))), bytes_(bytes) {}

PinnedBuffer::~PinnedBuffer() {
  cuda::release_pinned(data_);
}

}  // namespace strata::device
