#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"

namespace strata {

/// Where memory lives.
enum class MemorySpace { kHost, kCuda };

template <>
struct EnumNames<MemorySpace> {
  static constexpr std::array<std::pair<MemorySpace, std::string_view>, 2> kTable{
      {{MemorySpace::kHost, "cpu"}, {MemorySpace::kCuda, "cuda"}}};
};

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
    require(static_cast<std::int64_t>(elements.size()) == shape.count(),
            "{} elements do not make a tensor of {}", elements.size(), shape.text());
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
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    require(memory_space_ == MemorySpace::kHost, "host access to a tensor in {} memory",
            name_of(memory_space_));
    require(dtype_ == kDTypeOf<T>, "a {} tensor was read as {}", name_of(dtype_),
            name_of(kDTypeOf<T>));
    return std::span<Element>(reinterpret_cast<Element*>(data_), static_cast<std::size_t>(count()));
  }

  /// The address of the elements in a device's memory, for launches only.
  /// Throws: std::logic_error where T is not the dtype or the memory is the host's.
  template <typename T>
  [[nodiscard]] auto device() const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    require(memory_space_ == MemorySpace::kCuda, "a GPU was given a tensor in {} memory",
            name_of(memory_space_));
    require(dtype_ == kDTypeOf<T>, "a {} tensor was read as {}", name_of(dtype_),
            name_of(kDTypeOf<T>));
    return reinterpret_cast<Element*>(data_);
  }

  /// The same elements under another shape of equal count.
  [[nodiscard]] BasicTensorView reshaped(const Shape& shape) const {
    require(shape.count() == count(), "{} cannot be reshaped to {}", shape_.text(), shape.text());
    return {data_, shape, dtype_, memory_space_};
  }

  /// Elements [begin, begin + count) of the flattened tensor.
  [[nodiscard]] BasicTensorView flat_slice(std::int64_t begin, std::int64_t count) const {
    require(begin >= 0 && count >= 0 && begin + count <= this->count(),
            "slice [{}, {}) of {} elements", begin, begin + count, this->count());
    return {data_ + begin * size_bytes(dtype_), Shape{count}, dtype_, memory_space_};
  }

 private:
  Byte* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
  MemorySpace memory_space_ = MemorySpace::kHost;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

}  // namespace strata
