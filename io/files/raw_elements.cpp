#include "files/raw_elements.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "strata/core/error.hpp"

namespace strata::io {
namespace {

template <typename From, typename To>
void decode_as(std::span<const std::byte> raw, std::endian order, std::span<std::byte> out) {
  const std::size_t count = raw.size() / sizeof(From);
  for (std::size_t i = 0; i < count; ++i) {
    std::array<std::byte, sizeof(From)> bytes;
    std::memcpy(bytes.data(), raw.data() + i * sizeof(From), sizeof(From));
    if (order == std::endian::big) {
      std::reverse(bytes.begin(), bytes.end());
    }
    // A signed byte is a number here, not a character.
    const To value = static_cast<To>(static_cast<Compute<To>>(
        std::bit_cast<From>(bytes)));  // NOLINT(bugprone-signed-char-misuse)
    std::memcpy(out.data() + i * sizeof(To), &value, sizeof(To));
  }
}

template <typename From>
void decode_from(std::span<const std::byte> raw, std::endian order, DType dtype,
                 std::span<std::byte> out) {
  switch (dtype) {
    case DType::kFloat32:
      return decode_as<From, float>(raw, order, out);
    case DType::kFloat64:
      return decode_as<From, double>(raw, order, out);
    case DType::kBfloat16:
      return decode_as<From, BFloat16>(raw, order, out);
    case DType::kUint8:
      return decode_as<From, std::uint8_t>(raw, order, out);
    case DType::kInt64:
      return decode_as<From, std::int64_t>(raw, order, out);
    default:
      break;
  }
  require(false, "elements are not decoded to {}", name_of(dtype));
}

template <typename T>
std::int64_t first_not_finite_of(std::span<const std::byte> elements) {
  for (std::size_t i = 0; i < elements.size() / sizeof(T); ++i) {
    if (!std::isfinite(static_cast<Compute<T>>(load<T>(elements.data() + i * sizeof(T))))) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

}  // namespace

RawType stored_type(DType dtype) {
  return {dtype == DType::kUint8 ? RawType::Kind::kUnsigned : RawType::Kind::kFloat,
          size_bytes(dtype), std::endian::little};
}

DType stored_input_dtype(const RawType& type) {
  if (type.kind == RawType::Kind::kFloat) {
    return type.bytes == 8 ? DType::kFloat64 : DType::kFloat32;
  }
  if (type.kind == RawType::Kind::kUnsigned && type.bytes == 1) {
    return DType::kUint8;
  }
  return type.bytes <= 2 ? DType::kFloat32 : DType::kFloat64;
}

void decode(std::span<const std::byte> raw, const RawType& type, DType dtype,
            std::span<std::byte> out) {
  if (type.kind == RawType::Kind::kFloat) {
    return type.bytes == 8 ? decode_from<double>(raw, type.order, dtype, out)
                           : decode_from<float>(raw, type.order, dtype, out);
  }
  const auto decode_integers = [&](auto signed_zero) {
    using Signed = decltype(signed_zero);
    return type.kind == RawType::Kind::kSigned
               ? decode_from<Signed>(raw, type.order, dtype, out)
               : decode_from<std::make_unsigned_t<Signed>>(raw, type.order, dtype, out);
  };
  switch (type.bytes) {
    case 1:
      return decode_integers(std::int8_t{});
    case 2:
      return decode_integers(std::int16_t{});
    case 4:
      return decode_integers(std::int32_t{});
    case 8:
      return decode_integers(std::int64_t{});
    default:
      require(false, "elements of {} bytes", type.bytes);
  }
}

std::int64_t first_not_finite(std::span<const std::byte> elements, DType dtype) {
  return with_stored(dtype,
                     [&](auto zero) { return first_not_finite_of<decltype(zero)>(elements); });
}

}  // namespace strata::io
