#include "strata/ops/rms_norm.hpp"

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
  Layer(std::int64_t rows, std::int64_t n, std::size_t misalignment = 0)
      : x(randoms<T>({rows, n}, 1, 2.0, misalignment)),
        gain(randoms<T>({n}, 2, 1.0, misalignment)),
        dy(randoms<T>({rows, n}, 4, 1.0, misalignment)),
        y({rows, n}, misalignment),
        rstd({rows}),
        dx(randoms<T>({rows, n}, 5, 1.0, misalignment)),
        dgain({n}) {}

  void forward(Context& context) {
    rms_norm_forward(context, x.view(), gain.view(), kEpsilon, y.view(), rstd.view());
  }
  void backward(Context& context, Accumulate accumulate = Accumulate::kOverwrite) {
    rms_norm_backward_input(context, x.view(), gain.view(), rstd.view(), dy.view(), dx.view(),
                            accumulate);
    rms_norm_backward_weight(context, x.view(), rstd.view(), dy.view(), dgain.view(), accumulate);
  }

  Tensor<T> x;
  Tensor<T> gain;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<Compute<T>> rstd;
  Tensor<T> dx;
  Tensor<Compute<T>> dgain;
};

template <typename T>
class RmsNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(RmsNormTyped, Types);

TYPED_TEST(RmsNormTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  for (const std::int64_t n : {1, 2, 5, 16, 100, 3000}) {
    Layer<T> layer(4, n);
    layer.forward(context);
    std::vector<double> expected;
    for (std::int64_t row = 0; row < 4; ++row) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < n; ++i) {
        squares += std::pow(as_double(layer.x[row * n + i]), 2) / static_cast<double>(n);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        expected.push_back(as_double(layer.x[row * n + i]) / std::sqrt(squares + kEpsilon) *
                           as_double(layer.gain[i]));
      }
    }
    const double rounding = sizeof(T) == 2 ? test::kHalfUlp : 0.0;
    EXPECT_LT((relative_error<T, double>(layer.y.elements(), expected)),
              rounding + kTolerance<Compute<T>>)
        << n;
  }
}

TEST(RmsNorm, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  Layer<double> layer(3, 19);
  layer.forward(context);
  layer.backward(context);
  const auto loss = [&] {
    layer.forward(context);
    return dot(layer.dy, layer.y);
  };
  expect_gradient(loss, layer.x.elements(), layer.dx.values());
  expect_gradient(loss, layer.gain.elements(), layer.dgain.values());
}

TYPED_TEST(RmsNormTyped, GradientsAreAdded) {
  using T = TypeParam;
  using C = Compute<T>;
  Context context(1);
  Layer<T> once(6, 33);
  Layer<T> added(6, 33);
  once.forward(context);
  once.backward(context);
  added.forward(context);
  const auto before = added.dx.values();
  added.backward(context, Accumulate::kAdd);
  EXPECT_TRUE(once.dgain.values() == added.dgain.values());
  for (std::int64_t i = 0; i < 6 * 33; ++i) {
    const double start = as_double(before[static_cast<std::size_t>(i)]);
    const double sum = as_double(once.dx[i]) + start;
    // The gradient itself is rounded in `once`, the sum in `added`.
    const double unit = sizeof(T) == 2 ? test::kHalfUlp : kTolerance<C>;
    ASSERT_NEAR(as_double(added.dx[i]), sum,
                unit * (std::fabs(sum) + std::fabs(as_double(once.dx[i]))) * 1.01);
  }
  added.backward(context, Accumulate::kAdd);
  for (std::int64_t i = 0; i < 33; ++i) {
    ASSERT_EQ(added.dgain[i], once.dgain[i] + once.dgain[i]);
  }
}

TYPED_TEST(RmsNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  std::vector<std::vector<T>> first;
  std::vector<Compute<T>> first_gain;
  for (const int threads : {1, 3}) {
    Context context(threads);
    for (const std::size_t misalignment : {0, 3}) {
      Layer<T> layer(77, 1205, misalignment);
      layer.forward(context);
      layer.backward(context, Accumulate::kAdd);
      const std::vector<std::vector<T>> now{layer.y.values(), layer.dx.values()};
      if (first.empty()) {
        first = now;
        first_gain = layer.dgain.values();
      }
      EXPECT_TRUE(first == now) << threads << " threads, misaligned by " << misalignment;
      EXPECT_TRUE(first_gain == layer.dgain.values());
    }
  }
}

TEST(RmsNorm, ChecksWhatItIsGiven) {
  Context context(1);
  Layer<BFloat16> layer(3, 8);
  Tensor<BFloat16> narrow({3});
  EXPECT_THROW(rms_norm_forward(context, layer.x.view(), layer.gain.view(), kEpsilon,
                                layer.y.view(), narrow.view()),
               std::logic_error);
  Tensor<float> gain({8});
  EXPECT_THROW(rms_norm_forward(context, layer.x.view(), gain.view(), kEpsilon, layer.y.view(),
                                layer.rstd.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops
