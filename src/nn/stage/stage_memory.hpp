#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/device/buffer.hpp"
#include "strata/nn/stage.hpp"

namespace strata::nn {

/// Allocates tensors in one arena; without memory it only counts their bytes.
class Stage::ArenaAllocator {
 public:
  ArenaAllocator() = default;
  explicit ArenaAllocator(const device::Buffer* memory) : memory_(memory) {}

  /// An empty view for a tensor without elements.
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

  /// Bytes of one allocation, padded to the alignment.
  [[nodiscard]] static std::int64_t bytes_of(const Shape& shape, DType dtype) {
    constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
    return (shape.count() * size_bytes(dtype) + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Allocates in one of `parts` equal parts of the memory; offsets count from its begin.
  void select_part(std::int64_t part, std::int64_t parts) {
    base_ = part * (memory_->bytes() / parts);
  }
  /// The next allocation begins at this offset, even where it overlaps another.
  void move_to(std::int64_t offset) { offset_ = offset; }
  void rewind() { move_to(0); }

  /// The end of the highest allocation.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const device::Buffer* memory_ = nullptr;
  std::int64_t base_ = 0;
  std::int64_t offset_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace strata::nn
