#include "strata/ops/row_norm.hpp"

#include "norms.hpp"

namespace strata::ops::rms_norm_test {
namespace {

using namespace test;

struct RmsNorm {
  std::int64_t rows;
  std::int64_t columns;
  WeightOffset offset = WeightOffset::kZero;

  [[nodiscard]] RowNorm norm() const { return {Center::kZero, offset}; }
  [[nodiscard]] Shape input() const { return {rows, columns}; }
  [[nodiscard]] Shape weight() const { return {columns}; }
  [[nodiscard]] Shape bias() const { return {0}; }
  [[nodiscard]] Shape mean() const { return {0}; }
  [[nodiscard]] Shape spread() const { return {rows}; }

  template <typename L>
  void forward(Context& context, L& l) const {
    row_norm_forward(context, norm(), l.x.view(), l.weight.view(), {}, kEpsilon, l.y.view(), {},
                     l.spread.view());
  }
  template <typename L>
  void backward(Context& context, L& l, Accumulate accumulate = Accumulate::kOverwrite) const {
    row_norm_backward_input(
        context, norm(), l.x.view(), l.weight.view(), {}, l.spread.view(), l.dy.view(),
        accumulate == Accumulate::kAdd ? l.dx.view() : TensorView(), l.dx.view());
    row_norm_backward_weight(context, norm(), l.x.view(), {}, l.spread.view(), l.dy.view(),
                             l.dweight.view(), {}, accumulate);
  }
};

template <typename T>
using Layer = test::NormLayer<T, RmsNorm>;

template <typename T>
class RmsNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(RmsNormTyped, Types);

TYPED_TEST(RmsNormTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  for (const std::int64_t n : {1, 2, 5, 16, 100, 3000}) {
    for (const WeightOffset offset : {WeightOffset::kZero, WeightOffset::kOne}) {
      Layer<T> layer({4, n, offset});
      layer.forward(context);
      const double start = offset == WeightOffset::kOne ? 1.0 : 0.0;
      std::vector<double> expected;
      for (std::int64_t row = 0; row < 4; ++row) {
        double squares = 0.0;
        for (std::int64_t i = 0; i < n; ++i) {
          squares += std::pow(as_double(layer.x[row * n + i]), 2) / static_cast<double>(n);
        }
        for (std::int64_t i = 0; i < n; ++i) {
          expected.push_back(as_double(layer.x[row * n + i]) / std::sqrt(squares + kEpsilon) *
                             (start + as_double(layer.weight[i])));
        }
      }
      EXPECT_LT((relative_error<T, double>(layer.y.elements(), expected)), kStoredTolerance<T>)
          << n;
    }
  }
}

TEST(RmsNorm, BackwardAgreesWithFiniteDifferences) {
  test::expect_norm_gradients(RmsNorm{3, 19});
  test::expect_norm_gradients(RmsNorm{3, 19, WeightOffset::kOne});
}

TYPED_TEST(RmsNormTyped, WeightGradientsAreAdded) {
  test::expect_weight_gradients_added<TypeParam>(RmsNorm{6, 33});
}

TYPED_TEST(RmsNormTyped, GradientsAreAddedToNumbers) {
  using T = TypeParam;
  Context context(1);
  Layer<T> once({6, 33});
  Layer<T> added({6, 33});
  added.start_gradients();
  once.forward(context);
  once.backward(context);
  added.forward(context);
  const auto before = added.dx.values();
  added.backward(context, Accumulate::kAdd);
  EXPECT_TRUE(once.dweight.values() == added.dweight.values());
  for (std::int64_t i = 0; i < 6 * 33; ++i) {
    const double start = as_double(before[static_cast<std::size_t>(i)]);
    const double sum = as_double(once.dx[i]) + start;
    // The gradient itself is rounded in `once`, the sum in `added`.
    const double unit = sizeof(T) == 2 ? test::kHalfUlp : test::kTolerance<T>;
    ASSERT_NEAR(as_double(added.dx[i]), sum,
                unit * (std::fabs(sum) + std::fabs(as_double(once.dx[i]))) * 1.01);
  }
}

TYPED_TEST(RmsNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  test::expect_same_bits<TypeParam>(RmsNorm{77, 1205});
  test::expect_same_bits<TypeParam>(RmsNorm{77, 1205}, Accumulate::kAdd);
  test::expect_same_bits<TypeParam>(RmsNorm{77, 1205, WeightOffset::kOne});
}

// Rounded to bfloat16, 1 + weight would be 1.
TEST(RmsNorm, AddsOneInTheComputeType) {
  Context context(1);
  Layer<BFloat16> layer({1, 2, WeightOffset::kOne});
  std::ranges::fill(layer.x.elements(), BFloat16(1.0F));
  layer.x[1] = BFloat16(-3.0F);
  std::ranges::fill(layer.weight.elements(), BFloat16(0x1.8p-9F));
  layer.forward(context);
  for (std::int64_t i = 0; i < 2; ++i) {
    const float xhat = static_cast<float>(layer.x[i]) * layer.spread[0];
    EXPECT_TRUE(layer.y[i] == BFloat16(xhat * (1.0F + 0x1.8p-9F))) << i;
  }
}

TEST(RmsNorm, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<BFloat16> layer({3, 8});
  Tensor<BFloat16> narrow({3});
  EXPECT_THROW(row_norm_forward(context, {Center::kZero}, layer.x.view(), layer.weight.view(), {},
                                kEpsilon, layer.y.view(), {}, narrow.view()),
               std::logic_error);
  EXPECT_THROW(row_norm_forward(context, {Center::kMean, WeightOffset::kOne}, layer.x.view(),
                                layer.weight.view(), {}, kEpsilon, layer.y.view(),
                                layer.spread.view(), layer.spread.view()),
               std::logic_error);
  Tensor<float> weight({8});
  EXPECT_THROW(row_norm_forward(context, {Center::kZero}, layer.x.view(), weight.view(), {},
                                kEpsilon, layer.y.view(), {}, layer.spread.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::rms_norm_test
