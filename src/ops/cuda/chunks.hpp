#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/kernel.hpp"

// Vectorised access: 16 bytes at a time where the address is aligned. Included by .cu files alone.
namespace strata::ops::cuda {

/// A vector of elements for one memory access.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Chunk {
  T at[kWidth];
};

/// Bytes of a thread's widest access.
inline constexpr int kChunkBytes = 16;
template <typename T>
inline constexpr int kWide = kChunkBytes / static_cast<int>(sizeof(T));
template <typename T>
using Wide = Chunk<T, kWide<T>>;

/// Loads kWidth elements from an aligned address.
template <int kWidth, typename T>
__device__ Chunk<T, kWidth> elements_at(const T* at) {
  return *reinterpret_cast<const Chunk<T, kWidth>*>(at);
}
template <typename T, int kWidth>
__device__ void store_elements(T* at, const Chunk<T, kWidth>& elements) {
  *reinterpret_cast<Chunk<T, kWidth>*>(at) = elements;
}

/// Whether `at` is aligned to kWidth elements; null is.
template <int kWidth, typename T>
bool begins_chunk(const T* at) {
  return reinterpret_cast<std::uintptr_t>(at) % (sizeof(T) * kWidth) == 0;
}

/// Calls function(width) with a constant, the elements of a thread's access: 16 bytes of the widest
/// operand if all rows are aligned, else one element.
template <typename Function, typename... T>
void with_width(std::int64_t columns, const Function& function, const T*... at) {
  constexpr int kWidth = kChunkBytes / static_cast<int>(std::max({sizeof(T)...}));
  if (columns % kWidth == 0 && (begins_chunk<kWidth>(at) && ...)) {
    function(std::integral_constant<int, kWidth>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

/// The longest row of kernels with 32-bit indices, which need fewer registers; a thread may step
/// past the end.
inline constexpr std::int64_t kLongestRow = std::int64_t{1} << 30;

/// Elements between the previous multiple of 16 bytes and `at`.
template <typename T>
__device__ int elements_past(const T* at) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % kChunkBytes / sizeof(T));
}

/// Loads elements [first, first + kWide) of a row; elements past its end are `behind`.
template <typename T>
__device__ Wide<T> chunk_at(const T* row, int columns, int first, T behind) {
  if (first + kWide<T> <= columns && elements_past(row + first) == 0) {
    return *reinterpret_cast<const Wide<T>*>(row + first);
  }
  Wide<T> chunk;
#pragma unroll
  for (int i = 0; i < kWide<T>; ++i) {
    chunk.at[i] = first + i < columns ? row[first + i] : behind;
  }
  return chunk;
}

/// The same for unaligned rows, as those of 50257 elements: loads the two aligned chunks that
/// contain the elements (one of them is in the cache) and shifts them together.
template <typename T>
__device__ Wide<T> joined_chunk_at(const T* row, int columns, int first, T behind) {
  const int past = elements_past(row + first);
  if (past == 0 || first < past || first - past + 2 * kWide < T >> columns) {
    return chunk_at(row, columns, first, behind);
  }
  const auto* const from = reinterpret_cast<const Wide<T>*>(row + first - past);
  const Wide<T> pair[2] = {from[0], from[1]};
  constexpr int kWords = kChunkBytes / static_cast<int>(sizeof(std::uint32_t));
  std::uint32_t words[2 * kWords];
  std::memcpy(words, pair, sizeof(words));
  // Constant indices keep the words in registers.
  const unsigned bytes = static_cast<unsigned>(past) * sizeof(T);
  if ((bytes & 8U) != 0) {
#pragma unroll
    for (int i = 0; i + 2 < 2 * kWords; ++i) {
      words[i] = words[i + 2];
    }
  }
  if ((bytes & 4U) != 0) {
#pragma unroll
    for (int i = 0; i + 1 < 2 * kWords; ++i) {
      words[i] = words[i + 1];
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint64_t both = std::uint64_t{words[i + 1]} << 32 | words[i];
    words[i] = static_cast<std::uint32_t>(both >> (8 * (bytes & 3U)));
  }
  Wide<T> chunk;
  std::memcpy(&chunk, words, sizeof(chunk));
  return chunk;
}

/// Stores elements [first, first + kWide) of a row up to its end.
template <typename T>
__device__ void store_chunk(T* row, int columns, int first, const Wide<T>& chunk) {
  if (first + kWide<T> <= columns && elements_past(row + first) == 0) {
    *reinterpret_cast<Wide<T>*>(row + first) = chunk;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWide<T>; ++i) {
    if (first + i < columns) {
      row[first + i] = chunk.at[i];
    }
  }
}

}  // namespace strata::ops::cuda
