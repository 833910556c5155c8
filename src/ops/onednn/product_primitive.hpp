#pragma once

#include <compare>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/ops/matmul.hpp"

#include "onednn/primitive.hpp"

namespace strata::ops {

/// Cache key of a oneDNN matrix product: c[m, n] from a[m, k] and b[k, n], all with contiguous
/// rows. With gaps between rows oneDNN would choose a slower kernel with another order of sums.
struct ProductKey {
  DType operands = DType::kFloat32;  ///< of a, b and the bias
  DType result = DType::kFloat32;    ///< of c
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kOverwrite;
  bool has_bias = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

/// Operands: a, b, c and an optional bias.
[[nodiscard]] PrimitiveDescription describe(const dnnl::engine& engine, const ProductKey& key);

}  // namespace strata::ops
