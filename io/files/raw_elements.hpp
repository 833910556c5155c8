#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "strata/core/dtype.hpp"

namespace strata::io {

/// How numbers lie in a foreign file.
struct RawType {
  enum class Kind { kUnsigned, kSigned, kFloat };

  Kind kind = Kind::kUnsigned;
  std::int64_t bytes = 1;
  std::endian order = std::endian::little;

  [[nodiscard]] bool is_integer() const { return kind != Kind::kFloat; }
};

/// The dtype that a data set stores such numbers with as inputs: bytes stay bytes, floating-point
/// numbers keep their size, other integers become the smallest floating-point type that holds them.
[[nodiscard]] DType stored_input_dtype(const RawType& type);

/// Converts `raw` to elements of `dtype` at `out`.
/// Pre: `raw` holds whole elements of `type`; `out` has room for as many of `dtype`.
void decode(std::span<const std::byte> raw, const RawType& type, DType dtype,
            std::span<std::byte> out);

/// Index of the first NaN or infinity among the elements of a floating-point dtype, or -1.
[[nodiscard]] std::int64_t first_not_finite(std::span<const std::byte> elements, DType dtype);

}  // namespace strata::io
