#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/device/buffer.hpp"
#include "strata/nn/stage.hpp"

namespace strata::nn {

/// Deals out pieces of one arena, or only counts their bytes where it has no memory.
class Stage::ArenaAllocator {
 public:
  explicit ArenaAllocator(const device::Buffer* memory) : memory_(memory) {}

  /// Nothing for a tensor without elements.
  TensorView take(const Shape& shape, DType dtype) {
    if (shape.count() == 0) {
      return {};
    }
    const std::int64_t offset = offset_;
    offset_ += bytes_of(shape, dtype);
    bytes_ = std::max(bytes_, offset_);
    return memory_ == nullptr ? TensorView() : memory_->view(base_ + offset, shape, dtype);
  }
  TensorView take(const TensorSpec& spec) { return take(spec.shape, spec.dtype); }

  /// What a piece takes.
  [[nodiscard]] static std::int64_t bytes_of(const Shape& shape, DType dtype) {
    constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
    return (shape.count() * size_bytes(dtype) + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Offsets count from there.
  void set_base(std::int64_t base) { base_ = base; }
  /// The next piece begins there, be the memory taken or not.
  void move_to(std::int64_t offset) { offset_ = offset; }
  void rewind() { move_to(0); }

  /// The most that was dealt out at a time.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const device::Buffer* memory_;
  std::int64_t base_ = 0;
  std::int64_t offset_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace strata::nn
