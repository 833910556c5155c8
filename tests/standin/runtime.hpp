#pragma once

#include <functional>

#include <cuda_runtime_api.h>

namespace standin {

/// Puts a kernel on its stream; `thread` is what one thread does, `name` tells in messages what it
/// is.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const char* name,
                   std::function<void()> thread);

}  // namespace standin
