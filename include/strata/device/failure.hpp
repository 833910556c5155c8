#pragma once

#include <string_view>

namespace strata::device {

/// Throws Error(kPeer): `what`, as in "waiting for a stream", failed on the GPU, for `reason`.
[[noreturn]] void cuda_failed(const char* what, std::string_view reason);

}  // namespace strata::device
