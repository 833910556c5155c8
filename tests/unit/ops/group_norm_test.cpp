#include "strata/ops/group_norm.hpp"

#include <limits>

#include "tensors.hpp"

namespace strata::ops {
namespace {

using test::as_double;
using test::dot;
using test::expect_gradient;
using test::kTolerance;
using test::randoms;
using test::relative_error;
using test::Tensor;

constexpr double kEpsilon = 1e-5;

template <typename T>
struct Layer {
  using C = Compute<T>;

  explicit Layer(const GroupNormShape& of)
      : shape(of),
        x(randoms<T>(of.tensor(), 1, 2.0)),
        gain(randoms<T>({of.channels}, 2)),
        bias(randoms<T>({of.channels}, 3)),
        dy(randoms<T>(of.tensor(), 4)),
        y(of.tensor()),
        mean({of.images, of.groups}),
        rstd({of.images, of.groups}),
        dx(of.tensor()),
        dgain({of.channels}),
        dbias({of.channels}) {
    const C nan = std::numeric_limits<C>::quiet_NaN();
    std::fill(y.elements().begin(), y.elements().end(), static_cast<T>(nan));
    std::fill(dx.elements().begin(), dx.elements().end(), static_cast<T>(nan));
    for (Tensor<C>* tensor : {&mean, &rstd, &dgain, &dbias}) {
      std::fill(tensor->elements().begin(), tensor->elements().end(), nan);
    }
  }

  void forward(Context& context) {
    group_norm_forward(context, shape, x.view(), gain.view(), bias.view(), kEpsilon, y.view(),
                       mean.view(), rstd.view());
  }
  void backward(Context& context, Accumulate accumulate = Accumulate::kOverwrite) {
    group_norm_backward_input(context, shape, x.view(), gain.view(), mean.view(), rstd.view(),
                              dy.view(), dx.view());
    group_norm_backward_weight(context, shape, x.view(), mean.view(), rstd.view(), dy.view(),
                               dgain.view(), dbias.view(), accumulate);
  }

  GroupNormShape shape;
  Tensor<T> x;
  Tensor<T> gain;
  Tensor<T> bias;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<C> mean;
  Tensor<C> rstd;
  Tensor<T> dx;
  Tensor<C> dgain;
  Tensor<C> dbias;
};

std::vector<GroupNormShape> shapes() {
  return {{3, 20, 16, 4}, {2, 1, 30, 5}, {4, 49, 7, 7}, {5, 33, 300, 2}, {1, 100, 12, 1}};
}

template <typename T>
class GroupNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(GroupNormTyped, Types);

template <typename T>
constexpr double kAllowed = sizeof(T) == 2 ? 4e-3 : kTolerance<T>;

TYPED_TEST(GroupNormTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(2);
  for (const GroupNormShape& shape : shapes()) {
    Layer<T> layer(shape);
    layer.forward(context);
    const std::int64_t width = shape.channels / shape.groups;
    const auto count = static_cast<double>(shape.pixels * width);
    std::vector<double> expected(layer.y.elements().size());
    for (std::int64_t part = 0; part < shape.images * shape.groups; ++part) {
      const std::int64_t first = part % shape.groups * width;
      std::vector<std::int64_t> members;
      for (std::int64_t i = 0; i < shape.pixels * width; ++i) {
        const std::int64_t pixel = part / shape.groups * shape.pixels + i / width;
        members.push_back(pixel * shape.channels + first + i % width);
      }
      double mean = 0.0;
      double variance = 0.0;
      for (const std::int64_t i : members) {
        mean += as_double(layer.x[i]) / count;
      }
      for (const std::int64_t i : members) {
        variance += std::pow(as_double(layer.x[i]) - mean, 2) / count;
      }
      for (const std::int64_t i : members) {
        const std::int64_t c = i % shape.channels;
        expected[static_cast<std::size_t>(i)] = (as_double(layer.x[i]) - mean) /
                                                    std::sqrt(variance + kEpsilon) *
                                                    as_double(layer.gain[c]) +
                                                as_double(layer.bias[c]);
      }
    }
    EXPECT_LT((relative_error<T, double>(layer.y.elements(), expected)), kAllowed<T>);
  }
}

TYPED_TEST(GroupNormTyped, BitsDoNotDependOnThreads) {
  using T = TypeParam;
  for (const GroupNormShape& shape : shapes()) {
    Context one(1);
    Layer<T> first(shape);
    first.forward(one);
    first.backward(one);
    for (const int threads : {2, 3, 4}) {
      Context context(threads);
      Layer<T> layer(shape);
      layer.forward(context);
      layer.backward(context);
      EXPECT_TRUE(first.y.values() == layer.y.values());
      EXPECT_TRUE(first.mean.values() == layer.mean.values());
      EXPECT_TRUE(first.rstd.values() == layer.rstd.values());
      EXPECT_TRUE(first.dx.values() == layer.dx.values());
      EXPECT_TRUE(first.dgain.values() == layer.dgain.values());
      EXPECT_TRUE(first.dbias.values() == layer.dbias.values());
    }
  }
}

TYPED_TEST(GroupNormTyped, GradientsMayReplaceWhatTheyComeFromAndAreAdded) {
  using T = TypeParam;
  Context context(2);
  Layer<T> layer({3, 20, 16, 4});
  layer.forward(context);
  layer.backward(context);
  const auto once = layer.dgain.values();
  const auto once_bias = layer.dbias.values();
  layer.backward(context, Accumulate::kAdd);
  for (std::size_t c = 0; c < once.size(); ++c) {
    EXPECT_EQ(layer.dgain.values()[c], once[c] + once[c]);
    EXPECT_EQ(layer.dbias.values()[c], once_bias[c] + once_bias[c]);
  }
  group_norm_backward_input(context, layer.shape, layer.x.view(), layer.gain.view(),
                            layer.mean.view(), layer.rstd.view(), layer.dy.view(), layer.dy.view());
  EXPECT_TRUE(layer.dx.values() == layer.dy.values());
}

TEST(GroupNorm, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  for (const GroupNormShape& shape : {GroupNormShape{2, 5, 6, 2}, GroupNormShape{2, 3, 4, 4}}) {
    Layer<double> layer(shape);
    layer.forward(context);
    layer.backward(context);
    const auto loss = [&] {
      layer.forward(context);
      return dot(layer.dy, layer.y);
    };
    expect_gradient(loss, layer.x.elements(), layer.dx.values());
    expect_gradient(loss, layer.gain.elements(), layer.dgain.values());
    expect_gradient(loss, layer.bias.elements(), layer.dbias.values());
  }
}

TEST(GroupNorm, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<float> layer({2, 5, 6, 2});
  EXPECT_NO_THROW(layer.forward(context));
  layer.shape.groups = 4;
  EXPECT_THROW(layer.forward(context), std::logic_error);
  layer.shape.groups = 3;
  EXPECT_THROW(layer.forward(context), std::logic_error);
}

}  // namespace
}  // namespace strata::ops
