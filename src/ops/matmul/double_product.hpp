#pragma once

#include <cstdint>

#include "strata/ops/matmul.hpp"

namespace strata::ops {

/// A matrix with element (i, j) at data[i * row + j * column].
struct StridedMatrix {
  const double* data = nullptr;
  std::int64_t row = 0;
  std::int64_t column = 0;
};

/// c[m, n], row-major, from a[m, k] and b[k, n]; bias may be null.
struct DoubleProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  StridedMatrix a;
  StridedMatrix b;
  const double* bias = nullptr;
  double* c = nullptr;
  Accumulate accumulate = Accumulate::kOverwrite;
  Activation activation = Activation::kNone;
};

/// Matrix product in double; each element is summed over k in order (oneDNN has no double).
void double_product(Context& context, const DoubleProduct& product);

}  // namespace strata::ops
