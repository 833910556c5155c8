#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <ostream>
#include <vector>

#include "strata/ops/matmul.hpp"

#include "tensors.hpp"

/// What the tests of matrix products share.
namespace strata::ops::test {

/// An m x n product over k.
struct ProductSize {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;

  friend std::ostream& operator<<(std::ostream& out, const ProductSize& size) {
    return out << size.m << "x" << size.n << "x" << size.k;
  }
};

inline constexpr Transpose kTransposes[] = {Transpose::kNo, Transpose::kYes};

inline Shape stored(std::int64_t rows, std::int64_t columns, Transpose transpose) {
  return transpose == Transpose::kYes ? Shape{columns, rows} : Shape{rows, columns};
}

/// Operands of dtype T with a result of dtype C.
template <typename T, typename C>
struct Operands {
  Operands(const ProductSize& size, Transpose transpose_a, Transpose transpose_b,
           std::size_t misalignment = 0)
      : a(randoms<T>(stored(size.m, size.k, transpose_a), 1, 1.0, misalignment)),
        b(randoms<T>(stored(size.k, size.n, transpose_b), 2, 1.0, misalignment)),
        bias(randoms<T>({size.n}, 3, 1.0, misalignment)),
        c(randoms<C>({size.m, size.n}, 4, 1.0, misalignment)) {}
  Operands(const Operands& other, std::size_t misalignment)
      : a(other.a, misalignment),
        b(other.b, misalignment),
        bias(other.bias, misalignment),
        c(other.c, misalignment) {}

  Tensor<T> a;
  Tensor<T> b;
  Tensor<T> bias;
  Tensor<C> c;
};

/// The product in plain loops, in double, with what `options` ask for.
template <typename T, typename C>
std::vector<double> plain_product(const ProductSize& size, const Operands<T, C>& operands,
                                  const MatmulOptions& options) {
  std::vector<double> result;
  const bool transposed_a = options.transpose_a == Transpose::kYes;
  const bool transposed_b = options.transpose_b == Transpose::kYes;
  for (std::int64_t i = 0; i < size.m; ++i) {
    for (std::int64_t j = 0; j < size.n; ++j) {
      double sum = options.bias.empty() ? 0.0 : as_double(operands.bias[j]);
      for (std::int64_t p = 0; p < size.k; ++p) {
        sum += as_double(operands.a[transposed_a ? p * size.m + i : i * size.k + p]) *
               as_double(operands.b[transposed_b ? j * size.k + p : p * size.n + j]);
      }
      if (options.accumulate == Accumulate::kAdd) {
        sum += as_double(operands.c[i * size.n + j]);
      }
      result.push_back(options.activation == Activation::kRelu ? std::max(sum, 0.0) : sum);
    }
  }
  return result;
}

/// Every combination of options that a product takes.
inline std::vector<MatmulOptions> all_options(const ConstTensorView& bias, Transpose a,
                                              Transpose b) {
  std::vector<MatmulOptions> all;
  for (const ConstTensorView& added : {ConstTensorView{}, bias}) {
    all.push_back({a, b, Accumulate::kOverwrite, added, Activation::kNone});
    all.push_back({a, b, Accumulate::kOverwrite, added, Activation::kRelu});
    all.push_back({a, b, Accumulate::kAdd, added, Activation::kNone});
  }
  return all;
}

/// Holds products in every form to plain loops: `check(size, results, expected)` compares.
template <typename T, typename C, typename Check>
void expect_plain_products(const Check& check) {
  Context context(1);
  for (const ProductSize& size :
       {ProductSize{1, 1, 1}, ProductSize{5, 7, 3}, ProductSize{16, 10, 128},
        ProductSize{33, 65, 17}, ProductSize{4, 600, 9}, ProductSize{520, 3, 5},
        ProductSize{3, 5, 8200}, ProductSize{300, 2, 1100}, ProductSize{2, 1030, 7},
        ProductSize{1, 130, 64}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        const Operands<T, C> start(size, transpose_a, transpose_b);
        for (const MatmulOptions& options :
             all_options(start.bias.view(), transpose_a, transpose_b)) {
          SCOPED_TRACE(testing::Message() << size);
          Operands<T, C> operands(size, transpose_a, transpose_b);
          const std::vector<double> expected = plain_product(size, operands, options);
          matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
          check(size, std::span<const C>(operands.c.elements()), expected);
        }
      }
    }
  }
}

/// Holds products, and products added to them, to the bits that one thread makes of aligned
/// operands.
template <typename T, typename C>
void expect_same_product_bits(std::initializer_list<ProductSize> sizes,
                              std::initializer_list<int> thread_counts) {
  for (const ProductSize& size : sizes) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        const Operands<T, C> start(size, transpose_a, transpose_b);
        std::vector<C> first;
        for (const int threads : thread_counts) {
          Context context(threads);
          for (const std::size_t misalignment : {0, 1, 5}) {
            Operands<T, C> operands(start, misalignment);
            MatmulOptions options{transpose_a, transpose_b, Accumulate::kOverwrite,
                                  operands.bias.view(), Activation::kRelu};
            matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
            options = {transpose_a, transpose_b, Accumulate::kAdd};
            matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
            if (first.empty()) {
              first = operands.c.values();
            }
            ASSERT_EQ(
                std::memcmp(first.data(), operands.c.elements().data(), first.size() * sizeof(C)),
                0)
                << size << ", " << threads << " threads, misaligned by " << misalignment;
          }
        }
      }
    }
  }
}

}  // namespace strata::ops::test
