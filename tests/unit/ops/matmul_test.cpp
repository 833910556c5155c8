#include "strata/ops/matmul.hpp"

#include <limits>

#include "products.hpp"

namespace strata::ops::matmul_test {
namespace {

using namespace test;

template <typename T>
class MatmulTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(MatmulTyped, Types);

TYPED_TEST(MatmulTyped, AgreesWithPlainLoopsInEveryForm) {
  using T = TypeParam;
  test::expect_plain_products<T, T>(
      [](const ProductSize&, std::span<const T> results, const std::vector<double>& expected) {
        const double error = relative_error<T, double>(results, expected);
        // Relu may leave nothing but 0, whose norm is none.
        const bool same = std::equal(results.begin(), results.end(), expected.begin());
        EXPECT_TRUE(same || error <= kTolerance<T>) << "error " << error;
      });
}

TYPED_TEST(MatmulTyped, BitsDependOnNeitherThreadsNorAlignment) {
  test::expect_same_product_bits<TypeParam, TypeParam>({{128, 128, 784},
                                                        {128, 784, 128},
                                                        {128, 10, 128},
                                                        {10, 128, 128},
                                                        {1, 2049, 77},
                                                        {513, 65, 33},
                                                        {100, 1100, 50},
                                                        {1030, 520, 3},
                                                        {7, 4100, 129},
                                                        {3, 5, 4000},
                                                        {600, 700, 31},
                                                        {140, 5, 9001}},
                                                       {1, 2, 4});
}

/// Rows of a product, with those of its other options, together and one by one.
template <typename T, typename C>
void expect_bits_of_rows(int threads) {
  Context context(threads);
  for (const ProductSize& size :
       {ProductSize{1, 5, 9}, ProductSize{2, 64, 8}, ProductSize{5, 7, 3}, ProductSize{8, 192, 128},
        ProductSize{18, 33, 100}, ProductSize{3, 131, 1}}) {
    SCOPED_TRACE(testing::Message() << size);
    const Operands<T, C> start(size, Transpose::kNo, Transpose::kYes);
    for (const MatmulOptions& form :
         all_options(start.bias.view(), Transpose::kNo, Transpose::kYes)) {
      if (form.activation != Activation::kNone) {
        continue;
      }
      MatmulOptions options = form;
      options.row_bits = RowBits::kOfRow;
      Operands<T, C> together(start, 0);
      const std::vector<double> expected = plain_product(size, together, options);
      matmul(context, together.a.view(), together.b.view(), together.c.view(), options);
      const double tolerance = std::is_same_v<C, BFloat16> ? 4e-3 : 1e-6;
      EXPECT_LE((relative_error<C, double>(together.c.elements(), expected)), tolerance);
      Operands<T, C> alone(start, 0);
      for (std::int64_t row = 0; row < size.m; ++row) {
        matmul(context, alone.a.view().flat_slice(row * size.k, size.k).reshaped({1, size.k}),
               alone.b.view(),
               alone.c.view().flat_slice(row * size.n, size.n).reshaped({1, size.n}), options);
      }
      EXPECT_TRUE(together.c.values() == alone.c.values());
    }
  }
}

TEST(Matmul, BitsOfARowAreThoseOfTheRowAlone) {
  expect_bits_of_rows<float, float>(1);
  expect_bits_of_rows<float, float>(3);
  expect_bits_of_rows<double, double>(1);
  expect_bits_of_rows<BFloat16, BFloat16>(1);
  expect_bits_of_rows<BFloat16, float>(2);
}

TYPED_TEST(MatmulTyped, FusedReluIsTheSameBitsAndPassesNanOn) {
  using T = TypeParam;
  Context context(1);
  Operands<T, T> operands({9, 70, 20}, Transpose::kNo, Transpose::kYes);
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

template <typename T>
class ColumnSumTyped : public testing::Test {};
using Summed = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(ColumnSumTyped, Summed);

TYPED_TEST(ColumnSumTyped, AddsRowsInOrder) {
  using T = TypeParam;
  using C = Compute<T>;
  constexpr std::int64_t kColumns = 1100;
  const auto x = randoms<T>({37, kColumns}, 6);
  for (const auto accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const auto before = randoms<C>({kColumns}, 7);
    std::vector<C> expected;
    for (std::int64_t j = 0; j < kColumns; ++j) {
      C sum = 0;
      for (std::int64_t i = 0; i < 37; ++i) {
        sum += static_cast<C>(x[i * kColumns + j]);
      }
      expected.push_back(accumulate == Accumulate::kAdd ? before[j] + sum : sum);
    }
    for (const int threads : {1, 2, 3, 4}) {
      Context context(threads);
      auto sum = randoms<C>({kColumns}, 7);
      column_sum(context, x.view(), sum.view(), accumulate);
      EXPECT_TRUE(expected == sum.values());
    }
  }
}

}  // namespace
}  // namespace strata::ops::matmul_test
