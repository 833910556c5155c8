#include "strata/ops/row_norm.hpp"

#include "norms.hpp"

namespace strata::ops::layer_norm_test {
namespace {

using namespace test;

struct LayerNorm {
  std::int64_t rows;
  std::int64_t columns;

  [[nodiscard]] Shape input() const { return {rows, columns}; }
  [[nodiscard]] Shape weight() const { return {columns}; }
  [[nodiscard]] Shape bias() const { return {columns}; }
  [[nodiscard]] Shape mean() const { return {rows}; }
  [[nodiscard]] Shape spread() const { return {rows}; }

  template <typename L>
  void forward(Context& context, L& l) const {
    row_norm_forward(context, {Center::kMean}, l.x.view(), l.weight.view(), l.bias.view(), kEpsilon,
                     l.y.view(), l.mean.view(), l.spread.view());
  }
  template <typename L>
  void backward(Context& context, L& l, Accumulate accumulate = Accumulate::kOverwrite) const {
    row_norm_backward_input(context, {Center::kMean}, l.x.view(), l.weight.view(), l.mean.view(),
                            l.spread.view(), l.dy.view(), {}, l.dx.view());
    row_norm_backward_weight(context, {Center::kMean}, l.x.view(), l.mean.view(), l.spread.view(),
                             l.dy.view(), l.dweight.view(), l.dbias.view(), accumulate);
  }
};

template <typename T>
using Layer = test::NormLayer<T, LayerNorm>;

template <typename T>
class LayerNormTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LayerNormTyped, Types);

TYPED_TEST(LayerNormTyped, AgreesWithItsFormula) {
  Context context(1);
  for (const std::int64_t n : {2, 5, 16, 100, 3000}) {
    Layer<TypeParam> layer({4, n});
    layer.forward(context);
    test::expect_normalised(layer, 4, n,
                            [&](std::int64_t row, std::int64_t i) { return row * n + i; });
  }
}

TEST(LayerNorm, BackwardAgreesWithFiniteDifferences) {
  test::expect_norm_gradients(LayerNorm{3, 19});
}

TEST(LayerNorm, WorksWithoutBias) {
  Context context(1);
  Layer<float> with({5, 40});
  std::fill(with.bias.elements().begin(), with.bias.elements().end(), 0.0F);
  with.forward(context);
  Layer<float> without({5, 40});
  row_norm_forward(context, {Center::kMean}, without.x.view(), without.weight.view(), {}, kEpsilon,
                   without.y.view(), without.mean.view(), without.spread.view());
  EXPECT_TRUE(with.y.values() == without.y.values());
  with.backward(context);
  row_norm_backward_weight(context, {Center::kMean}, without.x.view(), without.mean.view(),
                           without.spread.view(), without.dy.view(), without.dweight.view(), {},
                           Accumulate::kOverwrite);
  EXPECT_TRUE(with.dweight.values() == without.dweight.values());
}

TYPED_TEST(LayerNormTyped, WeightGradientsAreAdded) {
  test::expect_weight_gradients_added<TypeParam>(LayerNorm{6, 33});
}

TYPED_TEST(LayerNormTyped, InputGradientsAreAdded) {
  using T = TypeParam;
  Layer<T> layer({7, 1033});
  for (const int threads : {1, 3}) {
    Context context(threads);
    layer.forward(context);
    layer.backward(context);
    auto added = randoms<T>({7, 1033}, 9);
    const auto before = added.values();
    row_norm_backward_input(context, {Center::kMean}, layer.x.view(), layer.weight.view(),
                            layer.mean.view(), layer.spread.view(), layer.dy.view(), added.view(),
                            added.view());
    test::Tensor<T> sum({7, 1033});
    std::copy(layer.dy.elements().begin(), layer.dy.elements().end(), sum.elements().begin());
    const auto addend = randoms<T>({7, 1033}, 9);
    row_norm_backward_input(context, {Center::kMean}, layer.x.view(), layer.weight.view(),
                            layer.mean.view(), layer.spread.view(), sum.view(), addend.view(),
                            sum.view());
    for (std::int64_t i = 0; i < 7 * 1033; ++i) {
      ASSERT_EQ(added[i], before[static_cast<std::size_t>(i)] + layer.dx[i]);
    }
    EXPECT_TRUE(sum.values() == added.values());
  }
}

TYPED_TEST(LayerNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  test::expect_same_bits<TypeParam>(LayerNorm{77, 1205});
}

}  // namespace
}  // namespace strata::ops::layer_norm_test
