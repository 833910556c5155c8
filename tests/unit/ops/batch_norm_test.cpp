#include "strata/ops/batch_norm.hpp"

#include "norms.hpp"

namespace strata::ops::batch_norm_test {
namespace {

using namespace test;

struct BatchNorm {
  std::int64_t rows;
  std::int64_t columns;
  Activation activation = Activation::kNone;

  [[nodiscard]] Shape input() const { return {rows, columns}; }
  [[nodiscard]] Shape weight() const { return {columns}; }
  [[nodiscard]] Shape bias() const { return {columns}; }
  [[nodiscard]] Shape mean() const { return {columns}; }
  [[nodiscard]] Shape spread() const { return {columns}; }

  template <typename L>
  void forward(Context& context, L& l) const {
    column_statistics(context, l.x.view(), l.mean.view(), l.spread.view());
    batch_norm_forward(context, l.x.view(), l.mean.view(), l.spread.view(), l.weight.view(),
                       l.bias.view(), kEpsilon, activation, l.y.view());
  }
  template <typename L>
  void backward(Context& context, L& l) const {
    const ConstTensorView out = activation == Activation::kRelu ? l.y.view() : ConstTensorView{};
    batch_norm_backward_sums(context, l.x.view(), l.mean.view(), l.spread.view(), kEpsilon, out,
                             l.dy.view(), l.dweight.view(), l.dbias.view());
    batch_norm_backward_input(context, l.x.view(), l.mean.view(), l.spread.view(), l.weight.view(),
                              kEpsilon, out, l.dy.view(), l.dweight.view(), l.dbias.view(),
                              l.dx.view());
  }
};

template <typename T>
using Layer = test::NormLayer<T, BatchNorm>;

template <typename T>
class BatchNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(BatchNormTyped, Types);

TYPED_TEST(BatchNormTyped, StatisticsOfManyRowsFarFromZeroAreExact) {
  using T = TypeParam;
  using C = Compute<T>;
  constexpr std::int64_t kRows = 131072;
  constexpr std::int64_t kColumns = 3;
  Context context(2);
  auto x = randoms<T>({kRows, kColumns}, 1);
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    // One column far from zero, one whose first rows are far from the others.
    const double far = i % kColumns == 1 ? 100.0 : i % kColumns == 2 && i < 900 ? 1000.0 : 0.5;
    x[i] = static_cast<T>(static_cast<C>(as_double(x[i]) + far));
  }
  Tensor<C> mean({kColumns});
  Tensor<C> variance({kColumns});
  column_statistics(context, x.view(), mean.view(), variance.view());
  for (std::int64_t j = 0; j < kColumns; ++j) {
    const Statistics expected =
        test::statistics_of(x, kRows, [&](std::int64_t row) { return row * kColumns + j; });
    const double allowed = sizeof(C) == 4 ? 1e-6 : 1e-14;
    EXPECT_NEAR(as_double(mean[j]) / expected.mean, 1.0, allowed);
    EXPECT_NEAR(as_double(variance[j]) / expected.variance, 1.0, allowed);
  }
}

TYPED_TEST(BatchNormTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(2);
  for (const auto& [rows, n] : {std::pair{1, 3}, {2, 16}, {100, 5}, {300, 64}, {70, 700}}) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
      Layer<T> layer({rows, n, activation});
      layer.forward(context);
      test::expect_normalised(
          layer, n, rows,
          [columns = std::int64_t{n}](std::int64_t j, std::int64_t row) {
            return row * columns + j;
          },
          activation);
    }
  }
}

TYPED_TEST(BatchNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  for (const auto& [rows, n] : {std::pair{1000, 96}, {20000, 3}, {200, 1100}}) {
    test::expect_same_bits<TypeParam>(BatchNorm{rows, n, Activation::kRelu});
  }
}

TYPED_TEST(BatchNormTyped, GradientsMayReplaceWhatTheyComeFrom) {
  using T = TypeParam;
  Context context(2);
  Layer<T> layer({70, 33, Activation::kRelu});
  layer.forward(context);
  layer.backward(context);
  const auto apart = layer.dx.values();
  batch_norm_backward_input(context, layer.x.view(), layer.mean.view(), layer.spread.view(),
                            layer.weight.view(), kEpsilon, layer.y.view(), layer.dy.view(),
                            layer.dweight.view(), layer.dbias.view(), layer.dy.view());
  EXPECT_TRUE(apart == layer.dy.values());
}

TEST(BatchNorm, BackwardAgreesWithFiniteDifferences) {
  for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
    test::expect_norm_gradients(BatchNorm{11, 5, activation});
  }
}

TEST(BatchNorm, GradientsOfBfloat16AreThoseOfItsNumbers) {
  Context context(2);
  Layer<BFloat16> narrow({300, 40, Activation::kRelu});
  Layer<double> wide({300, 40, Activation::kRelu});
  const auto copy = [](const Tensor<BFloat16>& from, Tensor<double>& to) {
    std::transform(from.elements().begin(), from.elements().end(), to.elements().begin(),
                   as_double<BFloat16>);
  };
  copy(narrow.x, wide.x);
  copy(narrow.weight, wide.weight);
  copy(narrow.bias, wide.bias);
  copy(narrow.dy, wide.dy);
  for (auto run : {0, 1}) {
    run == 0 ? narrow.forward(context) : narrow.backward(context);
    run == 0 ? wide.forward(context) : wide.backward(context);
  }
  EXPECT_LT((relative_error<BFloat16, double>(narrow.dx.elements(), wide.dx.elements())), 4e-3);
  EXPECT_LT((relative_error<float, double>(narrow.dweight.elements(), wide.dweight.elements())),
            2e-6);
  EXPECT_LT((relative_error<float, double>(narrow.dbias.elements(), wide.dbias.elements())), 2e-6);
}

TEST(BatchNorm, StatisticsMayHaveTheDtypeOfTheInput) {
  Context context(1);
  Layer<BFloat16> layer({9, 7});
  auto mean = randoms<BFloat16>({7}, 5);
  auto variance = randoms<BFloat16>({7}, 6);
  for (std::int64_t j = 0; j < 7; ++j) {
    variance[j] = BFloat16(std::fabs(static_cast<float>(variance[j])) + 1.0F);
    layer.mean[j] = static_cast<float>(mean[j]);
    layer.spread[j] = static_cast<float>(variance[j]);
  }
  Tensor<BFloat16> y({9, 7});
  batch_norm_forward(context, layer.x.view(), layer.mean.view(), layer.spread.view(),
                     layer.weight.view(), layer.bias.view(), kEpsilon, Activation::kNone,
                     layer.y.view());
  batch_norm_forward(context, layer.x.view(), mean.view(), variance.view(), layer.weight.view(),
                     layer.bias.view(), kEpsilon, Activation::kNone, y.view());
  EXPECT_TRUE(layer.y.values() == y.values());
}

TEST(BatchNorm, AColumnOfEqualNumbersHasNoVariance) {
  Context context(1);
  Tensor<float> x({1000, 2});
  std::fill(x.elements().begin(), x.elements().end(), 0.1F);
  Tensor<float> mean({2});
  Tensor<float> variance({2});
  column_statistics(context, x.view(), mean.view(), variance.view());
  EXPECT_NEAR(mean[0], 0.1F, 1e-7);
  EXPECT_GE(variance[0], 0.0F);
  EXPECT_LT(variance[0], 1e-14F);
}

TEST(BatchNorm, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<float> layer({4, 6});
  EXPECT_NO_THROW(layer.forward(context));
  layer.norm.activation = Activation::kGelu;
  EXPECT_THROW(layer.forward(context), std::logic_error);
  Tensor<double> wide({6});
  EXPECT_THROW(column_statistics(context, layer.x.view(), wide.view(), layer.spread.view()),
               std::logic_error);
  Tensor<float> narrow({5});
  EXPECT_THROW(column_statistics(context, layer.x.view(), layer.mean.view(), narrow.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::batch_norm_test
