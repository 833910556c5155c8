#include "matmul/row_product.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "simd/math.hpp"
#include "simd/to_storage.hpp"
#include "simd/transpose_block.hpp"

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace strata::ops {
namespace {

/// The partial sums of an element, the lanes of a vector: number t % kPartialSums sums the terms t.
/// Blocks of c have as many elements.
constexpr int kPartialSums = static_cast<int>(kTransposeBlock);
using PartialSums = EightFloats[kPartialSums];

/// sum = a b + sum, by lane.
[[gnu::always_inline]] inline void add_products(EightFloats& sum, const EightFloats& a,
                                                const EightFloats& b) {
#if defined(__FMA__)
  sum = _mm256_fmadd_ps(a, b, sum);
#elif defined(__ARM_NEON)
  float32x4_t parts[3][2];
  std::memcpy(parts[0], &sum, sizeof(sum));
  std::memcpy(parts[1], &a, sizeof(a));
  std::memcpy(parts[2], &b, sizeof(b));
  parts[0][0] = vfmaq_f32(parts[0][0], parts[1][0], parts[2][0]);
  parts[0][1] = vfmaq_f32(parts[0][1], parts[1][1], parts[2][1]);
  std::memcpy(&sum, parts[0], sizeof(sum));
#else
  for (int lane = 0; lane < kPartialSums; ++lane) {
    sum[lane] = fused(a[lane], b[lane], sum[lane]);
  }
#endif
}

/// Adds kPartialSums terms to the elements of kRows rows of a and kPartialSums / kRows rows of b.
template <int kRows, typename Stored>
[[gnu::always_inline]] inline void add_terms(
    const std::array<const float*, kRows>& a,
    const std::array<const Stored*, kPartialSums / kRows>& b, std::int64_t first,
    PartialSums& sums) {
  constexpr int kColumns = kPartialSums / kRows;
  EightFloats left[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    load_floats(left[i], a[i] + first);
#if defined(__FMA__)
    asm("" : "+x"(left[i]));  // else GCC loads it again for each product
#endif
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    EightFloats right;
    load_floats(right, b[j] + first);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      add_products(sums[i * kColumns + j], left[i], right);
    }
  }
}

/// elements[i] = the sum over the lanes of sums[i]: pairs, fours, halves, in the shuffles of
/// transpose_block().
[[gnu::always_inline]] inline void add_parts(PartialSums& sums, float* elements) {
#pragma GCC unroll 8
  for (int i = 0; i < kPartialSums / 2; ++i) {
    const EightFloats a = sums[2 * i];
    const EightFloats b = sums[2 * i + 1];
    sums[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
              __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPartialSums / 4; ++i) {
    const EightFloats a = sums[2 * i];
    const EightFloats b = sums[2 * i + 1];
    sums[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  const EightFloats all = __builtin_shufflevector(sums[0], sums[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                          __builtin_shufflevector(sums[0], sums[1], 4, 5, 6, 7, 12, 13, 14, 15);
  std::memcpy(elements, &all, sizeof(all));
}

/// The elements of a block of c. Their bits are the same in blocks of every form. Shape: elements
/// kRows x kPartialSums / kRows.
template <int kRows, typename Stored>
void multiply_block(const std::array<const float*, kRows>& a,
                    const std::array<const Stored*, kPartialSums / kRows>& b, std::int64_t k,
                    float* elements) {
  constexpr int kColumns = kPartialSums / kRows;
  PartialSums sums = {};
  const std::int64_t whole = k / kPartialSums * kPartialSums;
  for (std::int64_t first = 0; first < whole; first += kPartialSums) {
    add_terms<kRows, Stored>(a, b, first, sums);
  }
  if (whole < k) {
    // Zeros follow the last terms.
    float rest_of_a[kRows][kPartialSums] = {};
    Stored rest_of_b[kColumns][kPartialSums] = {};
    std::array<const float*, kRows> left{};
    std::array<const Stored*, kColumns> right{};
    for (int i = 0; i < kRows; ++i) {
      std::copy(a[i] + whole, a[i] + k, rest_of_a[i]);
      left[i] = rest_of_a[i];
    }
    for (int j = 0; j < kColumns; ++j) {
      std::copy(b[j] + whole, b[j] + k, rest_of_b[j]);
      right[j] = rest_of_b[j];
    }
    add_terms<kRows, Stored>(left, right, 0, sums);
  }
  add_parts(sums, elements);
}

/// Addresses and extents of a product; a as floats.
template <typename Stored, typename Result>
struct RowProduct {
  const float* a = nullptr;
  const Stored* b = nullptr;
  const Stored* bias = nullptr;
  Result* c = nullptr;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Accumulate accumulate = Accumulate::kOverwrite;

  /// Stores `count` elements of a row; it is a constant of most calls.
  [[gnu::always_inline]] void put(std::int64_t row, std::int64_t column, std::int64_t count,
                                  const float* elements) const {
    Result* const to = c + row * n + column;
    for (std::int64_t j = 0; j < count; ++j) {
      const float sum =
          elements[j] + (bias == nullptr ? 0.0F : static_cast<float>(bias[column + j]));
      to[j] = to_storage<Result>(
          sum + (accumulate == Accumulate::kAdd ? static_cast<float>(to[j]) : 0.0F));
    }
  }

  /// Computes up to kRows rows in up to kPartialSums columns. Rows and columns beyond the last
  /// repeat it and are not stored.
  template <int kRows>
  void multiply(std::int64_t row, std::int64_t column) const {
    constexpr int kColumns = kPartialSums / kRows;
    std::array<const float*, kRows> left{};
    for (int i = 0; i < kRows; ++i) {
      left[i] = a + std::min(row + i, m - 1) * k;
    }
    const std::int64_t count = std::min<std::int64_t>(kPartialSums, n - column);
    float elements[kRows][kPartialSums];
    for (int first = 0; first < count; first += kColumns) {
      std::array<const Stored*, kColumns> right{};
      for (int j = 0; j < kColumns; ++j) {
        right[j] = b + std::min(column + first + j, n - 1) * k;
      }
      float block[kPartialSums];
      multiply_block<kRows, Stored>(left, right, k, block);
      for (int i = 0; i < kRows; ++i) {
        std::copy_n(block + i * kColumns, kColumns, elements[i] + first);
      }
    }
    for (int i = 0; i < std::min<std::int64_t>(kRows, m - row); ++i) {
      if (count == kPartialSums) {
        put(row + i, column, kPartialSums, elements[i]);
      } else {
        put(row + i, column, count, elements[i]);
      }
    }
  }

  /// Reads kPartialSums rows of b for all rows of a, so that they come from memory once. Blocks of
  /// four rows of a load the fewest vectors for each product.
  void multiply_columns(std::int64_t column) const {
    for (std::int64_t row = 0; row < m;) {
      if (const std::int64_t left = m - row; left > 2) {
        multiply<4>(row, column);
        row += 4;
      } else if (left == 2) {
        multiply<2>(row, column);
        row += 2;
      } else {
        multiply<1>(row, column);
        ++row;
      }
    }
  }
};

}  // namespace

void row_product(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                 const ConstTensorView& bias, const TensorView& c, Accumulate accumulate) {
  const auto multiply = [&]<typename Stored>(Stored) {
    const std::span<const Stored> rows = a.host<Stored>();
    std::vector<float> wide;
    const float* floats = nullptr;
    if constexpr (std::is_same_v<Stored, float>) {
      floats = rows.data();
    } else {
      wide.resize(rows.size());
      std::ranges::transform(rows, wide.begin(),
                             [](const Stored& element) { return static_cast<float>(element); });
      floats = wide.data();
    }
    with_elements<Stored>(c, [&]<typename Result>(Result* to) {
      const RowProduct<Stored, Result> product{.a = floats,
                                               .b = b.host<Stored>().data(),
                                               .bias = host_or_null<Stored>(bias),
                                               .c = to,
                                               .m = a.shape()[0],
                                               .n = c.shape()[1],
                                               .k = a.shape()[1],
                                               .accumulate = accumulate};
      constexpr std::int64_t kGrain = 8 * kPartialSums;
      parallel_for(context, product.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t column = begin; column < end; column += kPartialSums) {
          product.multiply_columns(column);
        }
      });
    });
  };
  a.dtype() == DType::kBfloat16 ? multiply(BFloat16{}) : multiply(float{});
}

}  // namespace strata::ops
