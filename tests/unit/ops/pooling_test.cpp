#include "strata/ops/pooling.hpp"

#include <limits>

#include "convolution_shapes.hpp"
#include "tensors.hpp"

namespace strata::ops::pooling_test {
namespace {

using namespace test;

std::vector<PoolingShape> shapes() {
  return {{3, axis(8, 2, 2), axis(8, 2, 2), 32},
          {2, axis(9, 3, 2, 1, 1, 1), axis(7, 3, 2, 1, 1, 1), 5},
          {2, axis(11, 3, 1, 2, 2, 1), axis(6, 2, 3, 1, 0, 1), 130},
          {2, axis(5, 4, 1, 1, 3, 3), axis(4, 4, 1, 1, 2, 3), 17},
          {4, axis(7, 7), axis(6, 6), 300},
          {2, axis(10, 2, 5), axis(3, 1), 1}};
}

template <typename T>
struct Layer {
  explicit Layer(const PoolingShape& of)
      : shape(of),
        x(randoms<T>(of.input(), 1)),
        dy(randoms<T>(of.output(), 2)),
        y(poisoned<T>(of.output())),
        at(of.output()),
        dx(poisoned<T>(of.input())) {
    std::fill(at.elements().begin(), at.elements().end(), std::uint8_t{255});
  }
  void max(Context& context) {
    max_pool_forward(context, shape, x.view(), y.view(), at.view());
    max_pool_backward(context, shape, dy.view(), at.view(), dx.view());
  }
  void average(Context& context) {
    average_pool_forward(context, shape, x.view(), y.view());
    average_pool_backward(context, shape, dy.view(), dx.view());
  }

  PoolingShape shape;
  Tensor<T> x;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<std::uint8_t> at;
  Tensor<T> dx;
};

/// One element of an image under a window.
struct Seen {
  std::int64_t index;
  std::int64_t place;
};

/// What lies within the image under the window of output `out`, in order.
std::vector<Seen> seen(const PoolingShape& s, std::int64_t out) {
  const std::int64_t c = out % s.channels;
  const std::int64_t column = out / s.channels % s.width.out;
  const std::int64_t row = out / s.channels / s.width.out % s.height.out;
  const std::int64_t image = out / s.channels / s.width.out / s.height.out;
  std::vector<Seen> result;
  for (std::int64_t place = 0; place < s.height.window * s.width.window; ++place) {
    const std::int64_t y =
        row * s.height.stride - s.height.padding + place / s.width.window * s.height.dilation;
    const std::int64_t x =
        column * s.width.stride - s.width.padding + place % s.width.window * s.width.dilation;
    if (y >= 0 && y < s.height.in && x >= 0 && x < s.width.in) {
      result.push_back({((image * s.height.in + y) * s.width.in + x) * s.channels + c, place});
    }
  }
  return result;
}

template <typename T>
class PoolingTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(PoolingTyped, Types);

TYPED_TEST(PoolingTyped, MaxAgreesWithPlainLoops) {
  using T = TypeParam;
  Context context(2);
  for (const PoolingShape& shape : shapes()) {
    Layer<T> layer(shape);
    layer.max(context);
    std::vector<double> dx(layer.dx.elements().size());
    for (std::int64_t out = 0; out < shape.output().count(); ++out) {
      const std::vector<Seen> window = seen(shape, out);
      const Seen best =
          *std::max_element(window.begin(), window.end(), [&](const Seen& a, const Seen& b) {
            return as_double(layer.x[a.index]) < as_double(layer.x[b.index]);
          });
      ASSERT_EQ(as_double(layer.y[out]), as_double(layer.x[best.index])) << out;
      ASSERT_EQ(layer.at[out], best.place) << out;
      dx[static_cast<std::size_t>(best.index)] += as_double(layer.dy[out]);
    }
    EXPECT_LT((relative_error<T, double>(layer.dx.elements(), dx)), kStoredTolerance<T>);
  }
}

TYPED_TEST(PoolingTyped, AverageAgreesWithPlainLoops) {
  using T = TypeParam;
  Context context(2);
  for (const PoolingShape& shape : shapes()) {
    Layer<T> layer(shape);
    layer.average(context);
    std::vector<double> y(layer.y.elements().size());
    std::vector<double> dx(layer.dx.elements().size());
    for (std::int64_t out = 0; out < shape.output().count(); ++out) {
      const std::vector<Seen> window = seen(shape, out);
      const auto count = static_cast<double>(window.size());
      for (const Seen& element : window) {
        y[static_cast<std::size_t>(out)] += as_double(layer.x[element.index]) / count;
        dx[static_cast<std::size_t>(element.index)] += as_double(layer.dy[out]) / count;
      }
    }
    EXPECT_LT((relative_error<T, double>(layer.y.elements(), y)), kStoredTolerance<T>);
    EXPECT_LT((relative_error<T, double>(layer.dx.elements(), dx)), kStoredTolerance<T>);
  }
}

TYPED_TEST(PoolingTyped, BitsDoNotDependOnThreads) {
  using T = TypeParam;
  for (const PoolingShape& shape : shapes()) {
    for (const auto pool : {&Layer<T>::max, &Layer<T>::average}) {
      Context one(1);
      Layer<T> first(shape);
      (first.*pool)(one);
      for (const int threads : {2, 3, 4}) {
        Context context(threads);
        Layer<T> layer(shape);
        (layer.*pool)(context);
        EXPECT_TRUE(first.y.values() == layer.y.values());
        EXPECT_TRUE(first.at.values() == layer.at.values());
        EXPECT_TRUE(first.dx.values() == layer.dx.values());
      }
    }
  }
}

TYPED_TEST(PoolingTyped, TheFirstOfEqualElementsAndANanAreTheLargest) {
  using T = TypeParam;
  using C = Compute<T>;
  Context context(1);
  Layer<T> layer({1, axis(2, 2), axis(4, 2, 2), 1});
  const auto infinity = std::numeric_limits<C>::infinity();
  const C nan = std::numeric_limits<C>::quiet_NaN();
  const std::vector<C> rows{-infinity, -infinity, C{5}, nan, -infinity, -infinity, infinity, nan};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    layer.x.elements()[i] = static_cast<T>(rows[i]);
  }
  layer.max(context);
  EXPECT_EQ(as_double(layer.y[0]), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(layer.at[0], 0);
  EXPECT_TRUE(std::isnan(as_double(layer.y[1])));
  EXPECT_EQ(layer.at[1], 1);
}

TEST(Pooling, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  for (const PoolingShape& shape : shapes()) {
    if (shape.channels > 17) {
      continue;
    }
    Layer<double> layer(shape);
    layer.max(context);
    expect_gradient(
        [&] {
          max_pool_forward(context, shape, layer.x.view(), layer.y.view(), layer.at.view());
          return dot(layer.dy, layer.y);
        },
        layer.x.elements(), layer.dx.values());
    layer.average(context);
    expect_gradient(
        [&] {
          average_pool_forward(context, shape, layer.x.view(), layer.y.view());
          return dot(layer.dy, layer.y);
        },
        layer.x.elements(), layer.dx.values());
  }
}

TEST(Pooling, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<float> layer({1, axis(8, 2, 2), axis(8, 2, 2), 3});
  EXPECT_NO_THROW(layer.max(context));
  layer.shape.channels = 4;
  EXPECT_THROW(layer.max(context), std::logic_error);
  EXPECT_THROW(layer.average(context), std::logic_error);
  // Windows that see nothing but padding, and one whose places do not fit a byte.
  Layer<float> outside({1, axis(8, 2, 2, 1, 2, 0), axis(8, 2, 2), 3});
  EXPECT_THROW(outside.max(context), std::logic_error);
  EXPECT_THROW(outside.average(context), std::logic_error);
  Layer<float> large({1, axis(17, 17), axis(17, 17), 3});
  EXPECT_THROW(large.max(context), std::logic_error);
  EXPECT_NO_THROW(large.average(context));
}

}  // namespace
}  // namespace strata::ops::pooling_test
