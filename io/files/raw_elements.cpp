#include "files/raw_elements.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

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
    // A signed byte is a number here and becomes one with its sign.
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
    T value{};
    std::memcpy(&value, elements.data() + i * sizeof(T), sizeof(T));
    if (!std::isfinite(static_cast<Compute<T>>(value))) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

}  // namespace

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
  const bool is_signed = type.kind == RawType::Kind::kSigned;
  switch (type.bytes) {
    case 1:
      return is_signed ? decode_from<std::int8_t>(raw, type.order, dtype, out)
                       : decode_from<std::uint8_t>(raw, type.order, dtype, out);
    case 2:
      return is_signed ? decode_from<std::int16_t>(raw, type.order, dtype, out)
                       : decode_from<std::uint16_t>(raw, type.order, dtype, out);
    case 4:
      return is_signed ? decode_from<std::int32_t>(raw, type.order, dtype, out)
                       : decode_from<std::uint32_t>(raw, type.order, dtype, out);
    case 8:
      return is_signed ? decode_from<std::int64_t>(raw, type.order, dtype, out)
                       : decode_from<std::uint64_t>(raw, type.order, dtype, out);
    default:
      require(false, "elements of {} bytes", type.bytes);
  }
}

std::int64_t first_not_finite(std::span<const std::byte> elements, DType dtype) {
  return with_stored(dtype,
                     [&](auto zero) { return first_not_finite_of<decltype(zero)>(elements); });
}

}  // namespace strata::io
