#include "strata/device/device.hpp"

#include <fmt/core.h>

#include "strata/core/error.hpp"
#include "strata/device/failure.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

void cuda_failed(const char* what, std::string_view reason) {
  fail(ExitCode::kPeer, "{} failed on the GPU: {}; see nvidia-smi and the node's log", what,
       reason);
}

Device Device::cuda(std::int64_t index) {
  const std::int64_t count = cuda_device_count();
  if (index < 0 || index >= count) {
    fail(ExitCode::kPeer, "GPU {} was requested, and this process can use {}: {}", index, count,
         cuda::absence_reason());
  }
  return {DeviceKind::kCuda, index};
}

std::string Device::text() const {
  return kind_ == DeviceKind::kCpu ? std::string(name_of(kind_))
                                   : fmt::format("{}:{}", name_of(kind_), index_);
}

}  // namespace strata::device
