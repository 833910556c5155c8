#include "strata/ops/packing.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "observed.hpp"

namespace strata::ops {
namespace {

/// Bits of an integer packing; 0 for others.
int bits_of(Packing packing) {
  constexpr int kMost = 8;
  return packing >= Packing::kInt8
             ? kMost - (static_cast<int>(packing) - static_cast<int>(Packing::kInt8))
             : 0;
}

std::int64_t group_bytes(Packing packing, DType dtype) {
  switch (packing) {
    case Packing::kFull:
      return kPackedGroup * size_bytes(dtype);
    case Packing::kBfloat16:
      return kPackedGroup * size_bytes(DType::kBfloat16);
    default:
      return static_cast<std::int64_t>(sizeof(float)) + kPackedGroup / 8 * bits_of(packing);
  }
}

/// The largest integer of so many bits, with its negative. Pre: bits >= 1.
float most_of(int bits) {
  return std::ldexp(1.0F, bits - 1) - 1.0F;
}

template <typename T>
void pack_integers(const T* values, int bits, std::byte* into) {
  float largest = 0.0F;
  for (std::int64_t i = 0; i < kPackedGroup; ++i) {
    const float size = std::abs(static_cast<float>(values[i]));
    largest = size > largest || std::isnan(size) ? size : largest;
  }
  const float most = most_of(bits);
  const float scale = largest / most;
  std::memcpy(into, &scale, sizeof(scale));
  into += sizeof(scale);
  std::uint64_t word = 0;
  int filled = 0;
  for (std::int64_t i = 0; i < kPackedGroup; ++i) {
    const float exact = scale > 0.0F ? static_cast<float>(values[i]) / scale : 0.0F;
    const float rounded = std::isfinite(exact) ? std::nearbyint(exact) : 0.0F;
    const auto code = static_cast<std::uint64_t>(std::clamp(rounded, -most, most) + most);
    word |= code << static_cast<unsigned>(filled);
    for (filled += bits; filled >= 8; filled -= 8) {
      *into++ = static_cast<std::byte>(word & 0xFFU);
      word >>= 8U;
    }
  }
}

template <typename T>
void unpack_integers(const std::byte* from, int bits, T* values) {
  float scale = 0.0F;
  std::memcpy(&scale, from, sizeof(scale));
  from += sizeof(scale);
  const float most = most_of(bits);
  std::uint64_t word = 0;
  int filled = 0;
  for (std::int64_t i = 0; i < kPackedGroup; ++i) {
    for (; filled < bits; filled += 8) {
      word |= static_cast<std::uint64_t>(*from++) << static_cast<unsigned>(filled);
    }
    const auto code = static_cast<float>(word & ((1U << static_cast<unsigned>(bits)) - 1U));
    values[i] = static_cast<T>((code - most) * scale);
    word >>= static_cast<unsigned>(bits);
    filled -= bits;
  }
}

/// Calls function(first number, first byte) for each group.
template <typename Function>
void for_groups(Context& context, std::int64_t count, std::int64_t bytes,
                const Function& function) {
  constexpr std::int64_t kGrain = 64;
  parallel_for(context, count / kPackedGroup, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      function(group * kPackedGroup, group * bytes);
    }
  });
}

void check_sizes(const ConstTensorView& values, Packing packing, std::size_t bytes) {
  require(static_cast<std::int64_t>(bytes) == packed_bytes(packing, values.dtype(), values.count()),
          "{} bytes for {} packed numbers", bytes, values.count());
}

}  // namespace

std::int64_t packed_bytes(Packing packing, DType dtype, std::int64_t count) {
  require(count % kPackedGroup == 0, "{} numbers in packed groups of {}", count, kPackedGroup);
  return count / kPackedGroup * group_bytes(packing, dtype);
}

void pack(Context& context, const ConstTensorView& values, Packing packing,
          std::span<std::byte> packed) {
  const Observed observed(context, "pack", values);
  if (observed.skips()) {
    return;
  }
  check_sizes(values, packing, packed.size());
  with_floating(values.dtype(), [&]<typename T>(T) {
    const T* from = values.host<T>().data();
    for_groups(context, values.count(), group_bytes(packing, values.dtype()),
               [&](std::int64_t first, std::int64_t byte) {
                 std::byte* into = packed.data() + byte;
                 if (packing == Packing::kFull) {
                   std::memcpy(into, from + first, kPackedGroup * sizeof(T));
                 } else if (packing == Packing::kBfloat16) {
                   for (std::int64_t i = 0; i < kPackedGroup; ++i) {
                     const BFloat16 number(static_cast<float>(from[first + i]));
                     std::memcpy(into + i * 2, &number, sizeof(number));
                   }
                 } else {
                   pack_integers(from + first, bits_of(packing), into);
                 }
               });
  });
}

void unpack(Context& context, std::span<const std::byte> packed, Packing packing,
            const TensorView& values) {
  const Observed observed(context, "unpack", values);
  if (observed.skips()) {
    return;
  }
  check_sizes(values, packing, packed.size());
  with_floating(values.dtype(), [&]<typename T>(T) {
    T* into = values.host<T>().data();
    for_groups(context, values.count(), group_bytes(packing, values.dtype()),
               [&](std::int64_t first, std::int64_t byte) {
                 const std::byte* from = packed.data() + byte;
                 if (packing == Packing::kFull) {
                   std::memcpy(into + first, from, kPackedGroup * sizeof(T));
                 } else if (packing == Packing::kBfloat16) {
                   for (std::int64_t i = 0; i < kPackedGroup; ++i) {
                     BFloat16 number;
                     std::memcpy(&number, from + i * 2, sizeof(number));
                     into[first + i] = static_cast<T>(static_cast<float>(number));
                   }
                 } else {
                   unpack_integers(from, bits_of(packing), into + first);
                 }
               });
  });
}

}  // namespace strata::ops
