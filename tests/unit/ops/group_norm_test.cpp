#include "strata/ops/group_norm.hpp"

#include "norms.hpp"

namespace strata::ops::group_norm_test {
namespace {

struct GroupNorm {
  GroupNormShape shape;

  [[nodiscard]] Shape input() const { return shape.tensor(); }
  [[nodiscard]] Shape weight() const { return {shape.channels}; }
  [[nodiscard]] Shape bias() const { return {shape.channels}; }
  [[nodiscard]] Shape mean() const { return {shape.images, shape.groups}; }
  [[nodiscard]] Shape spread() const { return {shape.images, shape.groups}; }

  template <typename L>
  void forward(Context& context, L& l) const {
    group_norm_forward(context, shape, l.x.view(), l.weight.view(), l.bias.view(), test::kEpsilon,
                       l.y.view(), l.mean.view(), l.spread.view());
  }
  template <typename L>
  void backward(Context& context, L& l, Accumulate accumulate = Accumulate::kOverwrite) const {
    group_norm_backward_input(context, shape, l.x.view(), l.weight.view(), l.mean.view(),
                              l.spread.view(), l.dy.view(), l.dx.view());
    group_norm_backward_weight(context, shape, l.x.view(), l.mean.view(), l.spread.view(),
                               l.dy.view(), l.dweight.view(), l.dbias.view(), accumulate);
  }
};

template <typename T>
using Layer = test::NormLayer<T, GroupNorm>;

std::vector<GroupNormShape> shapes() {
  return {{3, 20, 16, 4}, {2, 1, 30, 5}, {4, 49, 7, 7}, {5, 33, 300, 2}, {1, 100, 12, 1}};
}

template <typename T>
class GroupNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(GroupNormTyped, Types);

TYPED_TEST(GroupNormTyped, AgreesWithItsFormula) {
  Context context(2);
  for (const GroupNormShape& shape : shapes()) {
    Layer<TypeParam> layer(GroupNorm{shape});
    layer.forward(context);
    const std::int64_t width = shape.channels / shape.groups;
    test::expect_normalised(
        layer, shape.images * shape.groups, shape.pixels * width,
        [&](std::int64_t part, std::int64_t i) {
          const std::int64_t pixel = part / shape.groups * shape.pixels + i / width;
          return pixel * shape.channels + part % shape.groups * width + i % width;
        });
  }
}

TYPED_TEST(GroupNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  for (const GroupNormShape& shape : shapes()) {
    test::expect_same_bits<TypeParam>(GroupNorm{shape});
  }
}

TYPED_TEST(GroupNormTyped, WeightGradientsAreAdded) {
  test::expect_weight_gradients_added<TypeParam>(GroupNorm{{3, 20, 16, 4}});
}

TYPED_TEST(GroupNormTyped, GradientsMayReplaceWhatTheyComeFrom) {
  Context context(2);
  Layer<TypeParam> layer(GroupNorm{{3, 20, 16, 4}});
  layer.forward(context);
  layer.backward(context);
  group_norm_backward_input(context, layer.norm.shape, layer.x.view(), layer.weight.view(),
                            layer.mean.view(), layer.spread.view(), layer.dy.view(),
                            layer.dy.view());
  EXPECT_TRUE(layer.dx.values() == layer.dy.values());
}

TEST(GroupNorm, BackwardAgreesWithFiniteDifferences) {
  for (const GroupNormShape& shape : {GroupNormShape{2, 5, 6, 2}, GroupNormShape{2, 3, 4, 4}}) {
    test::expect_norm_gradients(GroupNorm{shape});
  }
}

TEST(GroupNorm, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<float> layer(GroupNorm{{2, 5, 6, 2}});
  EXPECT_NO_THROW(layer.forward(context));
  layer.norm.shape.groups = 4;
  EXPECT_THROW(layer.forward(context), std::logic_error);
  layer.norm.shape.groups = 3;
  EXPECT_THROW(layer.forward(context), std::logic_error);
}

}  // namespace
}  // namespace strata::ops::group_norm_test
