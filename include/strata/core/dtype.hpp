#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "strata/core/bfloat16.hpp"
#include "strata/core/enum_names.hpp"

namespace strata {

/// Element types of tensors and data sets.
enum class DType { kFloat32, kFloat64, kBfloat16, kUint8, kUint16, kUint32, kInt64 };

constexpr auto enum_names(DType) {
  return names_in_order("float32", "float64", "bfloat16", "uint8", "uint16", "uint32", "int64");
}

/// Size of one element in bytes.
[[nodiscard]] constexpr std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kUint32:
      return 4;
    case DType::kUint8:
      return 1;
    case DType::kBfloat16:
    case DType::kUint16:
      return 2;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
  }
  return 0;
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kFloat32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kFloat64> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBfloat16> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<DType, DType::kUint16> {};
template <>
struct DTypeOf<std::uint32_t> : std::integral_constant<DType, DType::kUint32> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::kUint8> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::kInt64> {};

/// The DType of a C++ element type.
template <typename T>
inline constexpr DType kDTypeOf = DTypeOf<std::remove_const_t<T>>::value;

/// The compute type of elements stored as T.
template <typename T>
struct ComputeOf {
  using Type = T;
};
template <>
struct ComputeOf<BFloat16> {
  using Type = float;
};
template <typename T>
using Compute = typename ComputeOf<T>::Type;

/// The dtype in which elements of `dtype` are computed, accumulated and reduced.
[[nodiscard]] constexpr DType compute_dtype(DType dtype) {
  return dtype == DType::kBfloat16 ? DType::kFloat32 : dtype;
}

/// Throws std::logic_error: `dtype` is no floating-point type.
[[noreturn]] void refuse_dtype(DType dtype);

/// Calls `function(T{})` with T the C++ type of a floating-point `dtype`, bfloat16 among them.
template <typename Function>
decltype(auto) with_stored(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kFloat32:
      return std::forward<Function>(function)(float{});
    case DType::kFloat64:
      return std::forward<Function>(function)(double{});
    case DType::kBfloat16:
      return std::forward<Function>(function)(BFloat16{});
    default:
      refuse_dtype(dtype);
  }
}

/// Calls `function(T{})` with T the C++ type of a compute `dtype`: float or double.
template <typename Function>
decltype(auto) with_floating(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kFloat32:
      return std::forward<Function>(function)(float{});
    case DType::kFloat64:
      return std::forward<Function>(function)(double{});
    default:
      refuse_dtype(dtype);
  }
}

}  // namespace strata
