#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "strata/core/dtype.hpp"

namespace strata::io {

/// Storage format of the numbers in an imported file.
struct RawType {
  enum class Kind { kUnsigned, kSigned, kFloat };

  Kind kind = Kind::kUnsigned;
  std::int64_t bytes = 1;
  std::endian order = std::endian::little;

  [[nodiscard]] bool is_integer() const { return kind != Kind::kFloat; }
};

/// The value at `at`, which need not be aligned.
template <typename T>
[[nodiscard]] T load(const std::byte* at) {
  T value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Storage format of `dtype` in a data set. Pre: uint8, float32 or float64.
[[nodiscard]] RawType stored_type(DType dtype);

/// The dtype in which a data set stores inputs of `type`: bytes stay bytes, floating-point numbers
/// keep their size, other integers become the smallest floating-point type that holds them.
[[nodiscard]] DType stored_input_dtype(const RawType& type);

/// Converts `raw` to elements of `dtype` at `out`.
/// Pre: `raw` holds whole elements of `type`; `out` has room for as many of `dtype`.
void decode(std::span<const std::byte> raw, const RawType& type, DType dtype,
            std::span<std::byte> out);

/// Index of the first NaN or infinity among the elements of a floating-point dtype, or -1.
[[nodiscard]] std::int64_t first_not_finite(std::span<const std::byte> elements, DType dtype);

}  // namespace strata::io
