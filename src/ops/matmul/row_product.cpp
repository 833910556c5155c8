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

/// Rows of a are multiplied eight at a time, as the lanes of a vector, by eight rows of b.
constexpr std::int64_t kRowLanes = kTransposeBlock;

/// sum = a b + sum, by lane.
[[gnu::always_inline]] inline void add_lanes(EightFloats& sum, const EightFloats& a, float b) {
#if defined(__FMA__)
  sum = _mm256_fmadd_ps(a, _mm256_set1_ps(b), sum);
#elif defined(__ARM_NEON)
  std::array<float32x4_t, 2> sums;
  std::array<float32x4_t, 2> terms;
  std::memcpy(sums.data(), &sum, sizeof(sum));
  std::memcpy(terms.data(), &a, sizeof(a));
  sums[0] = vfmaq_n_f32(sums[0], terms[0], b);
  sums[1] = vfmaq_n_f32(sums[1], terms[1], b);
  std::memcpy(&sum, sums.data(), sizeof(sum));
#else
  for (int lane = 0; lane < kRowLanes; ++lane) {
    sum[lane] = fused(a[lane], b, sum[lane]);
  }
#endif
}

/// Sums of kRowLanes rows of a with as many rows of b; `panel` has term t of the rows of a at t *
/// kRowLanes. Shape: sums rows of b x rows of a.
void multiply_panel(const float* panel, const std::array<const float*, kRowLanes>& rows,
                    std::int64_t k, float* sums) {
  EightFloats lanes[kRowLanes] = {};
  for (std::int64_t term = 0; term < k; ++term) {
    EightFloats a;
    load_floats(a, panel + term * kRowLanes);
#pragma GCC unroll 8
    for (int j = 0; j < kRowLanes; ++j) {
      add_lanes(lanes[j], a, rows[j][term]);
    }
  }
  std::memcpy(sums, lanes, sizeof(lanes));
}

/// The same of one row of a, with `count` rows of b as lanes. An element has the same bits, for it
/// is summed term by term too. Shape: sums rows of b.
template <typename Stored>
void multiply_row(const float* a, const Stored* rows, std::int64_t count, std::int64_t k,
                  float* sums) {
  EightFloats lanes = {};
  const std::int64_t whole = count == kRowLanes ? k / kRowLanes * kRowLanes : 0;
  for (std::int64_t first = 0; first < whole; first += kRowLanes) {
    float terms[kRowLanes * kRowLanes];
    transpose_block(rows + first, k, terms, kRowLanes);
#pragma GCC unroll 8
    for (int term = 0; term < kRowLanes; ++term) {
      EightFloats b;
      load_floats(b, terms + term * kRowLanes);
      add_lanes(lanes, b, a[first + term]);
    }
  }
  std::memcpy(sums, &lanes, sizeof(lanes));
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t term = whole; term < k; ++term) {
      sums[j] = fused(static_cast<float>(rows[j * k + term]), a[term], sums[j]);
    }
  }
}

/// A product's result.
template <typename Stored, typename Result>
struct RowResult {
  Result* data = nullptr;
  const Stored* bias = nullptr;
  std::int64_t n = 0;
  Accumulate accumulate = Accumulate::kOverwrite;

  /// Stores `count` elements of a row; it is a constant of most calls.
  [[gnu::always_inline]] void put(std::int64_t row, std::int64_t column, std::int64_t count,
                                  const float* sums) const {
    Result* const to = data + row * n + column;
    for (std::int64_t j = 0; j < count; ++j) {
      const float sum = sums[j] + (bias == nullptr ? 0.0F : static_cast<float>(bias[column + j]));
      to[j] = to_storage<Result>(
          sum + (accumulate == Accumulate::kAdd ? static_cast<float>(to[j]) : 0.0F));
    }
  }
};

/// The rows of a: as floats, and as panels for multiply_panel() with zeros behind the last row.
struct PackedRows {
  std::int64_t m = 0;
  std::int64_t k = 0;
  std::vector<float> panels;
};

template <typename Stored>
PackedRows packed_rows(const Stored* a, std::int64_t m, std::int64_t k) {
  const std::int64_t lanes = m == 1 ? 1 : kRowLanes;
  PackedRows packed{m, k, std::vector<float>(static_cast<std::size_t>(padded_row(m, lanes) * k))};
  for (std::int64_t row = 0; row < m; ++row) {
    float* const panel = packed.panels.data() + row / lanes * lanes * k + row % lanes;
    for (std::int64_t term = 0; term < k; ++term) {
      panel[term * lanes] = static_cast<float>(a[row * k + term]);
    }
  }
  return packed;
}

/// Columns [column, column + count) of c. `wide`: memory for kRowLanes rows of b as floats.
template <typename Stored, typename Result>
void product_of_columns(const PackedRows& a, const Stored* b, std::int64_t column,
                        std::int64_t count, std::vector<float>& wide,
                        const RowResult<Stored, Result>& c) {
  const Stored* const first = b + column * a.k;
  float sums[kRowLanes * kRowLanes];
  const auto put = [&](std::int64_t row, const float* of_row) {
    if (count == kRowLanes) {
      c.put(row, column, kRowLanes, of_row);
    } else {
      c.put(row, column, count, of_row);
    }
  };
  if (a.m == 1) {
    multiply_row(a.panels.data(), first, count, a.k, sums);
    put(0, sums);
    return;
  }
  std::array<const float*, kRowLanes> rows{};
  for (std::int64_t j = 0; j < kRowLanes; ++j) {
    const Stored* const row = first + std::min(j, count - 1) * a.k;
    if constexpr (std::is_same_v<Stored, float>) {
      rows[static_cast<std::size_t>(j)] = row;
    } else {
      float* const to = wide.data() + j * a.k;
      for (std::int64_t term = 0; term < a.k; ++term) {
        to[term] = static_cast<float>(row[term]);
      }
      rows[static_cast<std::size_t>(j)] = to;
    }
  }
  for (std::int64_t row = 0; row < a.m; row += kRowLanes) {
    float turned[kRowLanes * kRowLanes];
    multiply_panel(a.panels.data() + row * a.k, rows, a.k, sums);
    transpose_block(sums, kRowLanes, turned, kRowLanes);
    for (std::int64_t i = 0; i < std::min(kRowLanes, a.m - row); ++i) {
      put(row + i, turned + i * kRowLanes);
    }
  }
}

template <typename Stored, typename Result>
void product_of_rows(Context& context, const PackedRows& a, const Stored* b,
                     const RowResult<Stored, Result>& c) {
  constexpr std::int64_t kGrain = 8 * kRowLanes;
  parallel_for(context, c.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> wide(
        std::is_same_v<Stored, float> || a.m == 1 ? 0 : static_cast<std::size_t>(kRowLanes * a.k));
    for (std::int64_t column = begin; column < end; column += kRowLanes) {
      product_of_columns(a, b, column, std::min(kRowLanes, end - column), wide, c);
    }
  });
}

}  // namespace

void row_product(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                 const ConstTensorView& bias, const TensorView& c, Accumulate accumulate) {
  const auto multiply = [&]<typename Stored>(Stored) {
    const PackedRows packed = packed_rows(a.host<Stored>().data(), a.shape()[0], a.shape()[1]);
    with_elements<Stored>(c, [&]<typename Result>(Result* to) {
      product_of_rows<Stored, Result>(context, packed, b.host<Stored>().data(),
                                      {to, host_or_null<Stored>(bias), c.shape()[1], accumulate});
    });
  };
  a.dtype() == DType::kBfloat16 ? multiply(BFloat16{}) : multiply(float{});
}

}  // namespace strata::ops
