#include "strata/ops/convolution.hpp"

#include <limits>

#include "convolution_shapes.hpp"
#include "tensors.hpp"

namespace strata::ops::convolution_test {
namespace {

using namespace test;

/// A layer whose results are NaN until they are computed.
template <typename T>
struct Layer {
  explicit Layer(const ConvolutionShape& of, std::size_t misalignment = 0)
      : shape(of),
        x(randoms<T>(of.input(), 1, 1.0, misalignment)),
        w(randoms<T>(of.weight(), 2, 1.0, misalignment)),
        bias(randoms<T>({of.out_channels}, 3, 1.0, misalignment)),
        dy(randoms<T>(of.output(), 4, 1.0, misalignment)),
        y(poisoned<T>(of.output(), misalignment)),
        dx(poisoned<T>(of.input(), misalignment)),
        dw(poisoned<Compute<T>>(of.weight(), misalignment)) {}

  void forward(Context& context, Activation activation = Activation::kNone) {
    convolution_forward(context, shape, x.view(), w.view(), y.view(), {bias.view(), activation});
  }
  void backward(Context& context, Accumulate accumulate = Accumulate::kOverwrite) {
    convolution_backward_input(context, shape, dy.view(), w.view(), dx.view());
    convolution_backward_weight(context, shape, x.view(), dy.view(), dw.view(), accumulate);
  }

  ConvolutionShape shape;
  Tensor<T> x;
  Tensor<T> w;
  Tensor<T> bias;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<T> dx;
  Tensor<Compute<T>> dw;
};

/// Every pass in plain loops, in double.
struct Reference {
  template <typename T>
  explicit Reference(const Layer<T>& layer)
      : y(static_cast<std::size_t>(layer.shape.output().count())),
        dx(static_cast<std::size_t>(layer.shape.input().count())),
        dw(static_cast<std::size_t>(layer.shape.weight().count())) {
    const ConvolutionShape& s = layer.shape;
    const std::int64_t inputs = s.in_channels / s.groups;
    for (std::int64_t out = 0; out < s.output().count(); ++out) {
      const std::int64_t o = out % s.out_channels;
      const std::int64_t column = out / s.out_channels % s.width.out;
      const std::int64_t row = out / s.out_channels / s.width.out % s.height.out;
      const std::int64_t image = out / s.out_channels / s.width.out / s.height.out;
      y[static_cast<std::size_t>(out)] = as_double(layer.bias[o]);
      for (std::int64_t weight = 0; weight < inputs * s.height.window * s.width.window; ++weight) {
        const std::int64_t j = weight % s.width.window;
        const std::int64_t i = weight / s.width.window % s.height.window;
        const std::int64_t channel = weight / s.width.window / s.height.window;
        const std::int64_t down = row * s.height.stride + i * s.height.dilation - s.height.padding;
        const std::int64_t across =
            column * s.width.stride + j * s.width.dilation - s.width.padding;
        if (down < 0 || down >= s.height.in || across < 0 || across >= s.width.in) {
          continue;
        }
        const std::int64_t at = o * inputs * s.height.window * s.width.window + weight;
        const std::int64_t in =
            ((image * s.height.in + down) * s.width.in + across) * s.in_channels +
            o / (s.out_channels / s.groups) * inputs + channel;
        const double w = as_double(layer.w[at]);
        y[static_cast<std::size_t>(out)] += as_double(layer.x[in]) * w;
        dx[static_cast<std::size_t>(in)] += as_double(layer.dy[out]) * w;
        dw[static_cast<std::size_t>(at)] += as_double(layer.dy[out]) * as_double(layer.x[in]);
      }
    }
  }

  std::vector<double> y;
  std::vector<double> dx;
  std::vector<double> dw;
};

template <typename T>
class ConvolutionTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(ConvolutionTyped, Types);

TYPED_TEST(ConvolutionTyped, AgreesWithPlainLoops) {
  using T = TypeParam;
  using C = Compute<T>;
  for (const int threads : {1, 3}) {
    Context context(threads);
    for (const ConvolutionShape& shape : convolution_shapes()) {
      SCOPED_TRACE(testing::Message() << shape);
      Layer<T> layer(shape);
      const Reference reference(layer);
      layer.forward(context);
      layer.backward(context);
      EXPECT_LT((relative_error<T, double>(layer.y.elements(), reference.y)), kStoredTolerance<T>);
      EXPECT_LT((relative_error<T, double>(layer.dx.elements(), reference.dx)),
                kStoredTolerance<T>);
      EXPECT_LT((relative_error<C, double>(layer.dw.elements(), reference.dw)),
                test::kTolerance<C>);
    }
  }
}

TYPED_TEST(ConvolutionTyped, BitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  for (const ConvolutionShape& shape : convolution_shapes()) {
    SCOPED_TRACE(testing::Message() << shape);
    Context context(1);
    Layer<T> first(shape);
    first.forward(context, Activation::kRelu);
    first.backward(context);
    for (const int threads : {1, 2, 3, 4}) {
      Context other(threads);
      for (const std::size_t misalignment : {0, 3}) {
        Layer<T> layer(shape, misalignment);
        layer.forward(other, Activation::kRelu);
        layer.backward(other);
        EXPECT_TRUE(first.y.values() == layer.y.values()) << threads;
        EXPECT_TRUE(first.dx.values() == layer.dx.values()) << threads;
        EXPECT_TRUE(first.dw.values() == layer.dw.values()) << threads;
      }
    }
  }
}

TEST(Convolution, LargeWeightGradientsAreTheSameBitsGroupByGroup) {
  // Eight groups of images, of whose sums four lie in memory together.
  const ConvolutionShape shape = square(16, 16, 1, 0, 1024, 1024);
  const auto x = randoms<float>(shape.input(), 1);
  const auto dy = randoms<float>(shape.output(), 2);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    Context context(threads);
    auto dw = poisoned<float>(shape.weight());
    convolution_backward_weight(context, shape, x.view(), dy.view(), dw.view(),
                                Accumulate::kOverwrite);
    if (first.empty()) {
      first = dw.values();
    }
    EXPECT_TRUE(first == dw.values()) << threads << " threads";
  }
}

TYPED_TEST(ConvolutionTyped, AnImageKnowsNothingOfTheOthers) {
  using T = TypeParam;
  Context context(2);
  for (const ConvolutionShape& shape : convolution_shapes()) {
    SCOPED_TRACE(testing::Message() << shape);
    Layer<T> first(shape);
    first.forward(context);
    first.backward(context);
    // The same last image behind images of NaN.
    Layer<T> second(shape);
    const auto poison = poisoned<T>(shape.input());
    const auto poison_y = poisoned<T>(shape.output());
    const std::int64_t in = shape.input().tail().count();
    const std::int64_t out = shape.output().tail().count();
    std::copy(poison.elements().begin(), poison.elements().end() - in, second.x.elements().begin());
    std::copy(poison_y.elements().begin(), poison_y.elements().end() - out,
              second.dy.elements().begin());
    second.forward(context);
    convolution_backward_input(context, shape, second.dy.view(), second.w.view(), second.dx.view());
    EXPECT_TRUE(std::equal(first.y.elements().end() - out, first.y.elements().end(),
                           second.y.elements().end() - out));
    EXPECT_TRUE(std::equal(first.dx.elements().end() - in, first.dx.elements().end(),
                           second.dx.elements().end() - in));
  }
}

TYPED_TEST(ConvolutionTyped, FusedReluIsTheSameBitsAndPassesNanOn) {
  using T = TypeParam;
  Context context(1);
  Layer<T> layer(square(3, 8, 3, 1, 5, 18));
  layer.x[0] = static_cast<T>(std::numeric_limits<Compute<T>>::quiet_NaN());
  layer.forward(context);
  activation_forward(context, Activation::kRelu, layer.y.view(), layer.y.view());
  const auto apart = layer.y.values();
  layer.forward(context, Activation::kRelu);
  EXPECT_TRUE(std::isnan(as_double(layer.y[0])));
  EXPECT_FALSE(std::isnan(as_double(layer.y[2 * 18])));
  for (std::size_t i = 0; i < apart.size(); ++i) {
    const double result = as_double(layer.y.elements()[i]);
    ASSERT_TRUE(result == as_double(apart[i]) || std::isnan(as_double(apart[i]))) << i;
  }
}

TYPED_TEST(ConvolutionTyped, WeightGradientsAreAdded) {
  using T = TypeParam;
  Context context(2);
  Layer<T> layer(square(17, 8, 3, 1, 5, 18));
  layer.backward(context);
  const auto once = layer.dw.values();
  layer.backward(context, Accumulate::kAdd);
  for (std::size_t i = 0; i < once.size(); ++i) {
    ASSERT_EQ(layer.dw.elements()[i], once[i] + once[i]);
  }
}

TEST(Convolution, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  for (const ConvolutionShape& shape :
       {ConvolutionShape{2, test::axis(7, 3, 2, 1, 1, 0), test::axis(8, 2, 1, 3, 0, 2), 4, 6, 2},
        square(2, 4, 3, 1, 3, 2)}) {
    Layer<double> layer(shape);
    layer.backward(context);
    const auto loss = [&] {
      layer.forward(context);
      return dot(layer.dy, layer.y);
    };
    expect_gradient(loss, layer.x.elements(), layer.dx.values());
    expect_gradient(loss, layer.w.elements(), layer.dw.values());
  }
}

TEST(Convolution, OfBfloat16MayStayFloat) {
  Context context(2);
  const ConvolutionShape shape = square(3, 8, 3, 1, 5, 18);
  Layer<BFloat16> layer(shape);
  std::fill(layer.bias.elements().begin(), layer.bias.elements().end(), BFloat16(0.0F));
  const Reference reference(layer);
  auto y = poisoned<float>(shape.output());
  auto dx = poisoned<float>(shape.input());
  convolution_forward(context, shape, layer.x.view(), layer.w.view(), y.view());
  convolution_backward_input(context, shape, layer.dy.view(), layer.w.view(), dx.view());
  EXPECT_LT((relative_error<float, double>(y.elements(), reference.y)), test::kTolerance<float>);
  EXPECT_LT((relative_error<float, double>(dx.elements(), reference.dx)), test::kTolerance<float>);
}

TEST(Convolution, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<float> layer(square(2, 8, 3, 1, 4, 6));
  EXPECT_NO_THROW(layer.forward(context));
  EXPECT_THROW(layer.forward(context, Activation::kTanh), std::logic_error);
  layer.shape.groups = 3;
  EXPECT_THROW(layer.forward(context), std::logic_error);
  layer.shape.groups = 1;
  layer.shape.height.out = 7;
  EXPECT_THROW(layer.forward(context), std::logic_error);
  layer.shape.height.out = 8;
  const auto wide = randoms<double>(layer.shape.weight(), 1);
  EXPECT_THROW(
      convolution_forward(context, layer.shape, layer.x.view(), wide.view(), layer.y.view()),
      std::logic_error);
  Layer<BFloat16> narrow(layer.shape);
  EXPECT_THROW(convolution_forward(context, narrow.shape, narrow.x.view(), narrow.w.view(),
                                   layer.y.view(), {narrow.bias.view()}),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::convolution_test
