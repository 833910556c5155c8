#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/device/buffer.hpp"
#include "strata/nn/stage.hpp"

namespace strata::nn {

/// Deals out pieces of one arena, or only counts their bytes where it has no memory.
class Stage::Carver {
 public:
  explicit Carver(const device::Buffer* memory) : memory_(memory) {}

  /// Nothing for a tensor without elements.
  TensorView take(const Shape& shape, DType dtype) {
    constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
    if (shape.count() == 0) {
      return {};
    }
    const std::int64_t offset = offset_;
    offset_ += (shape.count() * size_bytes(dtype) + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ = std::max(bytes_, offset_);
    return memory_ == nullptr ? TensorView() : memory_->view(offset, shape, dtype);
  }
  TensorView take(const TensorSpec& spec) { return take(spec.shape, spec.dtype); }

  /// The following pieces take the same memory anew.
  void rewind() { offset_ = 0; }

  /// The most that was dealt out at a time.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const device::Buffer* memory_;
  std::int64_t offset_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace strata::nn
