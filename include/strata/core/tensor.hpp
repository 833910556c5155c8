#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"

namespace strata {

/// Where memory lives.
enum class MemorySpace { kHost, kCuda };

constexpr auto enum_names(MemorySpace) {
  return names_in_order("cpu", "cuda");
}

/// Throw std::logic_error where a view is used against its preconditions.
[[noreturn]] void refuse_elements(std::size_t elements, const Shape& shape);
[[noreturn]] void refuse_access(MemorySpace expected, MemorySpace memory_space,
                                DType expected_dtype, DType dtype);
[[noreturn]] void refuse_reshape(const Shape& from, const Shape& to);
[[noreturn]] void refuse_slice(std::int64_t begin, std::int64_t count, std::int64_t elements);

/// A dense row-major tensor somewhere in memory, not owned. Elements are reached through host<T>(),
/// which refuses another dtype and memory that the host cannot read.
template <typename Byte>
class BasicTensorView {
 public:
  BasicTensorView() = default;
  BasicTensorView(Byte* data, const Shape& shape, DType dtype,
                  MemorySpace memory_space = MemorySpace::kHost)
      : data_(data), shape_(shape), dtype_(dtype), memory_space_(memory_space) {}
  /// A view of host elements.
  template <typename T>
  BasicTensorView(std::span<T> elements, const Shape& shape)
      : BasicTensorView(reinterpret_cast<Byte*>(elements.data()), shape, kDTypeOf<T>) {
    if (static_cast<std::int64_t>(elements.size()) != shape.count()) {
      refuse_elements(elements.size(), shape);
    }
  }
  /// A mutable view reads as a constant one.
  template <typename Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : BasicTensorView(other.raw(), other.shape(), other.dtype(), other.memory_space()) {}

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] MemorySpace memory_space() const { return memory_space_; }
  [[nodiscard]] std::int64_t count() const { return shape_.count(); }
  [[nodiscard]] std::int64_t bytes() const { return count() * size_bytes(dtype_); }
  [[nodiscard]] bool empty() const { return data_ == nullptr; }
  /// The address, for libraries and launches only.
  [[nodiscard]] Byte* raw() const { return data_; }

  /// The elements, in host memory.
  /// Throws: std::logic_error where T is not the dtype or the memory is a device's.
  template <typename T>
  [[nodiscard]] auto host() const {
    return std::span(elements_in<T>(MemorySpace::kHost), static_cast<std::size_t>(count()));
  }

  /// The address of the elements in a device's memory, for launches only.
  /// Throws: std::logic_error where T is not the dtype or the memory is the host's.
  template <typename T>
  [[nodiscard]] auto device() const {
    return elements_in<T>(MemorySpace::kCuda);
  }

  /// The same elements under another shape of equal count.
  [[nodiscard]] BasicTensorView reshaped(const Shape& shape) const {
    if (shape.count() != count()) {
      refuse_reshape(shape_, shape);
    }
    return {data_, shape, dtype_, memory_space_};
  }

  /// Elements [begin, begin + count) of the flattened tensor.
  [[nodiscard]] BasicTensorView flat_slice(std::int64_t begin, std::int64_t count) const {
    if (begin < 0 || count < 0 || begin + count > this->count()) {
      refuse_slice(begin, count, this->count());
    }
    return {data_ + begin * size_bytes(dtype_), Shape{count}, dtype_, memory_space_};
  }

 private:
  template <typename T>
  [[nodiscard]] auto elements_in(MemorySpace memory_space) const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    if (memory_space_ != memory_space || dtype_ != kDTypeOf<T>) {
      refuse_access(memory_space, memory_space_, kDTypeOf<T>, dtype_);
    }
    return reinterpret_cast<Element*>(data_);
  }

  Byte* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
  MemorySpace memory_space_ = MemorySpace::kHost;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

}  // namespace strata
