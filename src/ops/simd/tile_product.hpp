#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

// Small matrix products for attention on tiles in the L1 cache. Own code, because a oneDNN call at
// 64 x 64 x 32 takes 3 to 6 us and these take 2 to 3 us; they also skip masked elements and reuse
// packed operands.
namespace strata::ops {

/// Row strides are multiples of this; columns are computed this many at a time.
inline constexpr std::int64_t kTileColumns = 16;

inline std::int64_t padded(std::int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
}

/// Query i of a tile sees keys [0, i + offset]; products skip masked elements.
enum class TileForm {
  kScores,             ///< c = a b, c being scores of queries x keys; a is m x k
  kWeighted,           ///< c += a b, a being scores of queries x keys
  kWeightedTransposed  ///< c += a^T b, a being scores of queries x keys and so c's rows keys
};

/// c[m, n] from a and b[k, n], each with the elements from one row to the next. Elements of c in
/// columns that no query of their rows' block sees are left as they are.
template <typename T>
struct TileProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t offset = 0;
  const T* a = nullptr;
  std::int64_t row_a = 0;
  const T* b = nullptr;
  std::int64_t row_b = 0;
  T* c = nullptr;
  std::int64_t row_c = 0;
};

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
/// Twelve rows of one vector hide the FMA latency.
inline constexpr int kMaxRows = 12;
#elif defined(__ARM_NEON)
inline constexpr int kVectorBytes = 16;
/// Six rows of four vectors and their operands fill the 32 registers.
inline constexpr int kMaxRows = 6;
#else
inline constexpr int kVectorBytes = 32;
/// Six rows of two vectors and their operands fill the sixteen registers.
inline constexpr int kMaxRows = 6;
#endif

/// Vectors are passed by reference, because passing by value depends on the instruction set.
template <typename T>
struct VectorOf {
  using Type [[gnu::vector_size(kVectorBytes)]] = T;
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

/// One instruction that rounds once. GCC 12 makes none of a loop of std::fma over the lanes.
template <typename T>
void add_product(Vector<T>& sum, T a, const Vector<T>& b) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(a), b, sum);
    return;
  }
  if constexpr (std::is_same_v<T, double>) {
    sum = _mm512_fmadd_pd(_mm512_set1_pd(a), b, sum);
    return;
  }
#elif defined(__FMA__)
  if constexpr (std::is_same_v<T, float>) {
    sum = _mm256_fmadd_ps(_mm256_set1_ps(a), b, sum);
    return;
  }
  if constexpr (std::is_same_v<T, double>) {
    sum = _mm256_fmadd_pd(_mm256_set1_pd(a), b, sum);
    return;
  }
#elif defined(__ARM_NEON)
  if constexpr (std::is_same_v<T, float>) {
    sum = vfmaq_n_f32(sum, b, a);
    return;
  }
  if constexpr (std::is_same_v<T, double>) {
    sum = vfmaq_n_f64(sum, b, a);
    return;
  }
#endif
  sum += a * b;
}

/// Unaligned load and store.
template <typename T>
void load(Vector<T>& vector, const T* from) {
  std::memcpy(&vector, from, sizeof(vector));
}
template <typename T>
void store(const Vector<T>& vector, T* to) {
  std::memcpy(to, &vector, sizeof(vector));
}

/// Rows [row, row + kRows) and kTileColumns columns from `column` of c, summed over [begin, end) in
/// order: an element's bits depend on no other row or column.
template <typename T, TileForm kForm, int kRows>
void product_block(const TileProduct<T>& product, std::int64_t row, std::int64_t column,
                   std::int64_t begin, std::int64_t end) {
  constexpr int kWidth = sizeof(Vector<T>) / sizeof(T);
  constexpr int kVectors = kTileColumns / kWidth;
  // Plain arrays stay in registers.
  Vector<T> sums[kRows][kVectors] = {};
  T* const c = product.c + row * product.row_c + column;
  if constexpr (kForm != TileForm::kScores) {
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        load<T>(sums[i][v], c + i * product.row_c + v * kWidth);
      }
    }
  }
  constexpr bool kTransposed = kForm == TileForm::kWeightedTransposed;
  const std::int64_t next_row = kTransposed ? 1 : product.row_a;
  const std::int64_t next_term = kTransposed ? product.row_a : 1;
  const T* a = product.a + row * next_row + begin * next_term;
  const T* b = product.b + begin * product.row_b + column;
  for (std::int64_t term = begin; term < end; ++term) {
    Vector<T> right[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      load<T>(right[v], b + v * kWidth);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        add_product<T>(sums[i][v], a[i * next_row], right[v]);
      }
    }
    a += next_term;
    b += product.row_b;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      store<T>(sums[i][v], c + i * product.row_c + v * kWidth);
    }
  }
}

template <typename T, TileForm kForm, int kRows>
void product_rows(const TileProduct<T>& product, std::int64_t row) {
  // The last query of these rows, or the first key, bounds the visible range of all.
  const std::int64_t seen = row + kRows + product.offset;
  const std::int64_t columns =
      kForm == TileForm::kScores ? std::min(product.n, padded(seen)) : product.n;
  const std::int64_t begin =
      kForm == TileForm::kWeightedTransposed ? std::max<std::int64_t>(0, row - product.offset) : 0;
  const std::int64_t end = kForm == TileForm::kWeighted ? std::min(product.k, seen) : product.k;
  for (std::int64_t column = 0; column < columns; column += kTileColumns) {
    product_block<T, kForm, kRows>(product, row, column, begin, end);
  }
}

/// Computes `product`. Pre: n is a multiple of kTileColumns.
template <TileForm kForm, typename T>
void tile_product(const TileProduct<T>& product) {
  std::int64_t row = 0;
  for (; row + kMaxRows <= product.m; row += kMaxRows) {
    product_rows<T, kForm, kMaxRows>(product, row);
  }
  for (; row + 4 <= product.m; row += 4) {
    product_rows<T, kForm, 4>(product, row);
  }
  for (; row < product.m; ++row) {
    product_rows<T, kForm, 1>(product, row);
  }
}

}  // namespace strata::ops
