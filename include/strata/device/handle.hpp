#pragma once

#include <cstdint>
#include <memory>

namespace strata::device {

/// Destroys an object of the CUDA runtime on its GPU.
struct HandleDeleter {
  std::int64_t device = 0;
  void (*destroy)(std::int64_t device, void* object) noexcept = nullptr;

  void operator()(void* object) const noexcept { destroy(device, object); }
};

/// An object of the CUDA runtime; null on the CPU.
using Handle = std::unique_ptr<void, HandleDeleter>;

}  // namespace strata::device
