#pragma once

#include <cstdint>
#include <cstring>

#include "strata/core/bfloat16.hpp"

namespace strata::ops {

/// Rows and columns of a block of transpose_block().
inline constexpr std::int64_t kTransposeBlock = 8;

using EightFloats [[gnu::vector_size(32)]] = float;

/// Loads eight elements as floats; by reference, because passing a vector depends on the
/// instruction set.
inline void load_floats(EightFloats& vector, const float* from) {
  std::memcpy(&vector, from, sizeof(vector));
}
inline void load_floats(EightFloats& vector, const BFloat16* from) {
  using Halves [[gnu::vector_size(16)]] = std::uint16_t;
  using Words [[gnu::vector_size(32)]] = std::uint32_t;
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16U;
  std::memcpy(&vector, &words, sizeof(vector));
}

/// to[c * to_stride + r] = from[r * from_stride + c] for a square of kTransposeBlock, in three
/// rounds of SIMD shuffles: pairs, fours, halves.
template <typename Stored>
void transpose_block(const Stored* from, std::int64_t from_stride, float* to,
                     std::int64_t to_stride) {
  constexpr int kRows = static_cast<int>(kTransposeBlock);
  EightFloats row[kRows];
  EightFloats pair[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    load_floats(row[i], from + i * from_stride);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; i += 2) {
    pair[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pair[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; i += 4) {
#pragma GCC unroll 8
    for (int j = 0; j < 2; ++j) {
      const EightFloats& a = pair[i + j];
      const EightFloats& b = pair[i + j + 2];
      row[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      row[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows / 2; ++i) {
    const EightFloats& a = row[i];
    const EightFloats& b = row[i + kRows / 2];
    const EightFloats first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    const EightFloats second = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    std::memcpy(to + i * to_stride, &first, sizeof(first));
    std::memcpy(to + (i + kRows / 2) * to_stride, &second, sizeof(second));
  }
}

inline void transpose_block(const double* from, std::int64_t from_stride, double* to,
                            std::int64_t to_stride) {
  for (std::int64_t row = 0; row < kTransposeBlock; ++row) {
    for (std::int64_t c = 0; c < kTransposeBlock; ++c) {
      to[c * to_stride + row] = from[row * from_stride + c];
    }
  }
}

}  // namespace strata::ops
