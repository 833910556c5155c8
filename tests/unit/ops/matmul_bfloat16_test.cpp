#include <algorithm>
#include <ostream>

#include "strata/ops/matmul.hpp"

#include "tensors.hpp"

namespace strata::ops {
namespace {

using test::as_double;
using test::expect_rounded;
using test::randoms;
using test::Tensor;

struct Case {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.m << "x" << c.n << "x" << c.k;
  }
};

constexpr Transpose kTransposes[] = {Transpose::kNo, Transpose::kYes};

Shape stored(std::int64_t rows, std::int64_t columns, Transpose transpose) {
  return transpose == Transpose::kYes ? Shape{columns, rows} : Shape{rows, columns};
}

/// Operands of dtype T with a result of dtype C.
template <typename T, typename C>
struct Operands {
  Operands(const Case& size, Transpose transpose_a, Transpose transpose_b,
           std::size_t misalignment = 0)
      : a(randoms<T>(stored(size.m, size.k, transpose_a), 1, 1.0, misalignment)),
        b(randoms<T>(stored(size.k, size.n, transpose_b), 2, 1.0, misalignment)),
        bias(randoms<T>({size.n}, 3, 1.0, misalignment)),
        c(randoms<C>({size.m, size.n}, 4, 1.0, misalignment)) {}

  Tensor<T> a;
  Tensor<T> b;
  Tensor<T> bias;
  Tensor<C> c;
};

/// The product of the rounded operands in plain loops, in double.
template <typename C>
std::vector<double> reference(const Case& size, const Operands<BFloat16, C>& operands,
                              const MatmulOptions& options) {
  std::vector<double> result;
  const bool turned_a = options.transpose_a == Transpose::kYes;
  const bool turned_b = options.transpose_b == Transpose::kYes;
  for (std::int64_t i = 0; i < size.m; ++i) {
    for (std::int64_t j = 0; j < size.n; ++j) {
      double sum = options.bias.empty() ? 0.0 : as_double(operands.bias[j]);
      for (std::int64_t p = 0; p < size.k; ++p) {
        sum += as_double(operands.a[turned_a ? p * size.m + i : i * size.k + p]) *
               as_double(operands.b[turned_b ? j * size.k + p : p * size.n + j]);
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
std::vector<MatmulOptions> all_options(const ConstTensorView& bias, Transpose a, Transpose b) {
  std::vector<MatmulOptions> all;
  for (const ConstTensorView& added : {ConstTensorView{}, bias}) {
    all.push_back({a, b, Accumulate::kOverwrite, added, Activation::kNone});
    all.push_back({a, b, Accumulate::kOverwrite, added, Activation::kRelu});
    all.push_back({a, b, Accumulate::kAdd, added, Activation::kNone});
  }
  return all;
}

template <typename C>
class MatmulBfloat16 : public testing::Test {};
using Results = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(MatmulBfloat16, Results);

TYPED_TEST(MatmulBfloat16, AgreesWithPlainLoopsInEveryForm) {
  using C = TypeParam;
  Context context(1);
  for (const Case& size : {Case{1, 1, 1}, Case{5, 7, 3}, Case{16, 10, 128}, Case{33, 65, 17},
                           Case{4, 600, 9}, Case{520, 3, 5}, Case{3, 5, 8200}, Case{300, 2, 1100},
                           Case{2, 1030, 7}, Case{1, 130, 64}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        const Operands<BFloat16, C> start(size, transpose_a, transpose_b);
        for (const MatmulOptions& options :
             all_options(start.bias.view(), transpose_a, transpose_b)) {
          Operands<BFloat16, C> operands(size, transpose_a, transpose_b);
          const std::vector<double> expected = reference(size, operands, options);
          matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
          // Products of two bfloat16 are exact in float; each of k + 2 additions may be off by
          // half a unit of a sum that stays below 3.1 a term.
          const double terms = static_cast<double>(size.k + 2);
          SCOPED_TRACE(testing::Message() << size);
          ASSERT_NO_FATAL_FAILURE(
              (expect_rounded<C>(operands.c.elements(), expected, 3.1 * terms, terms * 0x1p-24)));
        }
      }
    }
  }
}

TYPED_TEST(MatmulBfloat16, BitsDependOnNeitherThreadsNorAlignment) {
  using C = TypeParam;
  for (const Case& size : {Case{128, 128, 784}, Case{128, 10, 128}, Case{1, 2049, 77},
                           Case{513, 65, 33}, Case{1030, 520, 3}, Case{7, 4100, 129},
                           Case{3, 5, 4000}, Case{600, 700, 31}, Case{140, 5, 9001}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        std::vector<C> first;
        for (const int threads : {1, 3}) {
          Context context(threads);
          for (const std::size_t misalignment : {0, 1, 5}) {
            Operands<BFloat16, C> operands(size, transpose_a, transpose_b, misalignment);
            MatmulOptions options{transpose_a, transpose_b, Accumulate::kOverwrite,
                                  operands.bias.view(), Activation::kRelu};
            matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
            options = {transpose_a, transpose_b, Accumulate::kAdd};
            matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
            if (first.empty()) {
              first = operands.c.values();
            }
            ASSERT_TRUE(first == operands.c.values())
                << size << ", " << threads << " threads, misaligned by " << misalignment;
          }
        }
      }
    }
  }
}

/// The rows, or columns, [begin, begin + count) of a stored matrix.
template <typename T>
Tensor<T> part_of(const Tensor<T>& whole, const Shape& shape, std::int64_t dimension,
                  std::int64_t begin, std::int64_t count) {
  Tensor<T> part(dimension == 0 ? Shape{count, shape[1]} : Shape{shape[0], count});
  const std::int64_t columns = dimension == 0 ? shape[1] : count;
  for (std::int64_t i = 0; i < part.view().count(); ++i) {
    const std::int64_t row = i / columns + (dimension == 0 ? begin : 0);
    const std::int64_t column = i % columns + (dimension == 1 ? begin : 0);
    part[i] = whole[row * shape[1] + column];
  }
  return part;
}

template <typename T, typename C>
struct Dtypes {
  using Operand = T;
  using Result = C;
};

template <typename Pair>
class MatmulBlocks : public testing::Test {};
using Pairs =
    testing::Types<Dtypes<float, float>, Dtypes<BFloat16, float>, Dtypes<BFloat16, BFloat16>>;
TYPED_TEST_SUITE(MatmulBlocks, Pairs);

// What lets a product be cut by columns of b or rows of a among ranks (design law 1).
TYPED_TEST(MatmulBlocks, ABlockAloneHasTheBitsThatItHasInTheWhole) {
  using T = typename TypeParam::Operand;
  using C = typename TypeParam::Result;
  Context context(1);
  // Widths and depths in the proportions of GPT-2's layers, a sixth of their size, and of a small
  // character model.
  for (const Case& size : {Case{64, 384, 128}, Case{64, 128, 128}, Case{64, 512, 128},
                           Case{64, 128, 512}, Case{768, 384, 128}, Case{384, 128, 768},
                           Case{64, 8376, 128}, Case{256, 768, 768}, Case{256, 64, 8376}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        Operands<T, C> whole(size, transpose_a, transpose_b);
        const MatmulOptions options{transpose_a, transpose_b, Accumulate::kAdd};
        const Tensor<C> before = randoms<C>({size.m, size.n}, 4);
        matmul(context, whole.a.view(), whole.b.view(), whole.c.view(), options);
        for (const std::int64_t pieces : {2, 4}) {
          const std::int64_t n = size.n / pieces;
          const std::int64_t m = size.m / pieces;
          const auto b = part_of(whole.b, stored(size.k, size.n, transpose_b),
                                 transpose_b == Transpose::kYes ? 0 : 1, size.n - n, n);
          auto c = part_of(before, {size.m, size.n}, 1, size.n - n, n);
          matmul(context, whole.a.view(), b.view(), c.view(), options);
          ASSERT_TRUE(part_of(whole.c, {size.m, size.n}, 1, size.n - n, n).values() == c.values())
              << size << " in " << pieces << " blocks of columns";
          const auto a = part_of(whole.a, stored(size.m, size.k, transpose_a),
                                 transpose_a == Transpose::kYes ? 1 : 0, size.m - m, m);
          c = part_of(before, {size.m, size.n}, 0, size.m - m, m);
          matmul(context, a.view(), whole.b.view(), c.view(), options);
          ASSERT_TRUE(part_of(whole.c, {size.m, size.n}, 0, size.m - m, m).values() == c.values())
              << size << " in " << pieces << " blocks of rows";
        }
      }
    }
  }
}

TEST(MatmulBfloat16Errors, ChecksDtypes) {
  Context context(1);
  const auto a = randoms<BFloat16>({3, 4}, 1);
  const auto b = randoms<BFloat16>({4, 6}, 1);
  const auto wide = randoms<float>({4, 6}, 1);
  const auto bias = randoms<float>({6}, 1);
  Tensor<float> c({3, 6});
  Tensor<double> wider({3, 6});
  EXPECT_THROW(matmul(context, a.view(), wide.view(), c.view()), std::logic_error);
  EXPECT_THROW(matmul(context, a.view(), b.view(), wider.view()), std::logic_error);
  EXPECT_THROW(matmul(context, a.view(), b.view(), c.view(), {.bias = bias.view()}),
               std::logic_error);
  EXPECT_NO_THROW(matmul(context, a.view(), b.view(), c.view()));
}

TEST(ColumnSum, OfBfloat16IsFloat) {
  constexpr std::int64_t kColumns = 1100;
  const auto x = randoms<BFloat16>({37, kColumns}, 6);
  for (const auto accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    for (const int threads : {1, 3}) {
      Context context(threads);
      auto sum = randoms<float>({kColumns}, 7);
      const auto before = randoms<float>({kColumns}, 7);
      column_sum(context, x.view(), sum.view(), accumulate);
      for (std::int64_t j = 0; j < kColumns; ++j) {
        float expected = 0.0F;
        for (std::int64_t i = 0; i < 37; ++i) {
          expected += static_cast<float>(x[i * kColumns + j]);
        }
        ASSERT_EQ(sum[j], accumulate == Accumulate::kAdd ? before[j] + expected : expected);
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
