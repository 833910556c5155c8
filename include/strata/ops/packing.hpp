#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// How numbers are stored in a message.
enum class Packing {
  kFull,  ///< in their own dtype
  kBfloat16,
  kInt8,  ///< kPackedGroup numbers with one scale, each a multiple of it with so many bits
  kInt7,
  kInt6,
  kInt5,
  kInt4
};

constexpr auto enum_names(Packing) {
  return names_in_order("full", "bfloat16", "int8", "int7", "int6", "int5", "int4");
}

/// Consecutive numbers with one scale.
inline constexpr std::int64_t kPackedGroup = 128;

/// Bytes of `count` packed numbers. Pre: kPackedGroup divides count.
[[nodiscard]] std::int64_t packed_bytes(Packing packing, DType dtype, std::int64_t count);

/// Packs numbers in host memory, rounded to nearest. The integers of a group are x / scale with
/// scale = max |x| / (2^(bits - 1) - 1), in float32; a group of zeros has the scale 0.
/// Shapes: values float32 or float64; packed has packed_bytes().
void pack(Context& context, const ConstTensorView& values, Packing packing,
          std::span<std::byte> packed);

/// The numbers that pack() has stored. Shapes: as pack().
void unpack(Context& context, std::span<const std::byte> packed, Packing packing,
            const TensorView& values);

}  // namespace strata::ops
