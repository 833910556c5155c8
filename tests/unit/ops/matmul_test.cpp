#include "strata/ops/matmul.hpp"

#include <limits>
#include <ostream>

#include "tensors.hpp"

namespace strata::ops {
namespace {

using test::kTolerance;
using test::randoms;
using test::relative_error;
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

template <typename T>
struct Operands {
  Operands(const Case& size, Transpose transpose_a, Transpose transpose_b, std::size_t misalignment)
      : a(randoms<T>(stored(size.m, size.k, transpose_a), 1, 1.0, misalignment)),
        b(randoms<T>(stored(size.k, size.n, transpose_b), 2, 1.0, misalignment)),
        bias(randoms<T>({size.n}, 3, 1.0, misalignment)),
        c(randoms<T>({size.m, size.n}, 4, 1.0, misalignment)) {}

  Tensor<T> a;
  Tensor<T> b;
  Tensor<T> bias;
  Tensor<T> c;
};

/// The product in plain loops, in double, with what `options` ask for.
template <typename T>
std::vector<double> reference(const Case& size, const Operands<T>& operands,
                              const MatmulOptions& options) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < size.m; ++i) {
    for (std::int64_t j = 0; j < size.n; ++j) {
      double sum = 0.0;
      for (std::int64_t p = 0; p < size.k; ++p) {
        const bool turned_a = options.transpose_a == Transpose::kYes;
        const bool turned_b = options.transpose_b == Transpose::kYes;
        sum += static_cast<double>(operands.a[turned_a ? p * size.m + i : i * size.k + p]) *
               static_cast<double>(operands.b[turned_b ? j * size.k + p : p * size.n + j]);
      }
      sum += options.bias.empty() ? 0.0 : static_cast<double>(operands.bias[j]);
      if (options.accumulate == Accumulate::kAdd) {
        sum += static_cast<double>(operands.c[i * size.n + j]);
      }
      result.push_back(options.activation == Activation::kRelu ? std::max(sum, 0.0) : sum);
    }
  }
  return result;
}

template <typename T>
class MatmulTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(MatmulTyped, Types);

TYPED_TEST(MatmulTyped, AgreesWithPlainLoopsInEveryForm) {
  using T = TypeParam;
  Context context(1);
  for (const Case& size :
       {Case{1, 1, 1}, Case{5, 7, 3}, Case{16, 10, 128}, Case{33, 65, 17}, Case{4, 600, 9},
        Case{520, 3, 5}, Case{3, 5, 8200}, Case{300, 2, 1100}, Case{2, 1030, 7}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        for (const auto accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
          for (const bool with_bias : {false, true}) {
            for (const auto activation : {Activation::kNone, Activation::kRelu}) {
              if (activation == Activation::kRelu && accumulate == Accumulate::kAdd) {
                continue;
              }
              Operands<T> operands(size, transpose_a, transpose_b, 0);
              MatmulOptions options{transpose_a, transpose_b, accumulate, {}, activation};
              if (with_bias) {
                options.bias = operands.bias.view();
              }
              const std::vector<double> expected = reference(size, operands, options);
              matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
              // One element may be rounded to or from 0 by relu; a norm of 0 is none.
              const double error = relative_error<T, double>(operands.c.elements(), expected);
              EXPECT_FALSE(error > kTolerance<T>) << size << " error " << error;
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(MatmulTyped, BitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  for (const Case& size :
       {Case{128, 128, 784}, Case{128, 784, 128}, Case{128, 10, 128}, Case{10, 128, 128},
        Case{1, 2049, 77}, Case{513, 65, 33}, Case{100, 1100, 50}, Case{1030, 520, 3},
        Case{7, 4100, 129}, Case{3, 5, 4000}, Case{600, 700, 31}, Case{140, 5, 9001}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        std::vector<T> first;
        for (const int threads : {1, 2, 4}) {
          Context context(threads);
          for (const std::size_t misalignment : {0, 1, 5}) {
            Operands<T> operands(size, transpose_a, transpose_b, misalignment);
            matmul(context, operands.a.view(), operands.b.view(), operands.c.view(),
                   {.transpose_a = transpose_a,
                    .transpose_b = transpose_b,
                    .accumulate = Accumulate::kOverwrite,
                    .bias = operands.bias.view(),
                    .activation = Activation::kRelu});
            matmul(context, operands.a.view(), operands.b.view(), operands.c.view(),
                   {.transpose_a = transpose_a,
                    .transpose_b = transpose_b,
                    .accumulate = Accumulate::kAdd});
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

TYPED_TEST(MatmulTyped, FusedReluIsTheSameBitsAndPassesNanOn) {
  using T = TypeParam;
  Context context(1);
  const Case size{9, 70, 20};
  Operands<T> operands(size, Transpose::kNo, Transpose::kYes, 0);
  operands.a[3] = std::numeric_limits<T>::quiet_NaN();
  MatmulOptions options{.transpose_b = Transpose::kYes, .bias = operands.bias.view()};
  matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
  activation_forward(context, Activation::kRelu, operands.c.view(), operands.c.view());
  const std::vector<T> apart = operands.c.values();
  options.activation = Activation::kRelu;
  matmul(context, operands.a.view(), operands.b.view(), operands.c.view(), options);
  EXPECT_TRUE(std::isnan(operands.c[0]));
  EXPECT_FALSE(std::isnan(operands.c[70]));
  for (std::int64_t i = 70; i < 9 * 70; ++i) {
    ASSERT_EQ(apart[static_cast<std::size_t>(i)], operands.c[i]);
  }
}

TEST(Matmul, ChecksWhatItIsGiven) {
  Context context(1);
  const auto a = randoms<float>({3, 4}, 1);
  const auto b = randoms<float>({5, 6}, 1);
  const auto wide = randoms<double>({4, 6}, 1);
  Tensor<float> c({3, 6});
  EXPECT_THROW(matmul(context, a.view(), b.view(), c.view()), std::logic_error);
  EXPECT_THROW(matmul(context, a.view(), wide.view(), c.view()), std::logic_error);
  const auto fits = randoms<float>({4, 6}, 1);
  EXPECT_THROW(matmul(context, a.view(), fits.view(), c.view(), {.bias = a.view()}),
               std::logic_error);
  EXPECT_THROW(matmul(context, a.view(), fits.view(), c.view(), {.activation = Activation::kTanh}),
               std::logic_error);
  EXPECT_NO_THROW(matmul(context, a.view(), fits.view(), c.view()));
}

TYPED_TEST(MatmulTyped, ColumnSumAddsRowsInOrder) {
  using T = TypeParam;
  const auto x = randoms<T>({37, 1100}, 6);
  for (const auto accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const auto before = randoms<T>({1100}, 7);
    std::vector<T> expected;
    for (std::int64_t j = 0; j < 1100; ++j) {
      T sum = 0;
      for (std::int64_t i = 0; i < 37; ++i) {
        sum += x[i * 1100 + j];
      }
      expected.push_back(accumulate == Accumulate::kAdd ? before[j] + sum : sum);
    }
    for (const int threads : {1, 2, 4}) {
      Context context(threads);
      auto sum = randoms<T>({1100}, 7);
      column_sum(context, x.view(), sum.view(), accumulate);
      EXPECT_TRUE(expected == sum.values());
    }
  }
}

}  // namespace
}  // namespace strata::ops
