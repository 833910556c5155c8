#include "strata/ops/activation.hpp"

#include <limits>
#include <numbers>
#include <utility>

#include "tensors.hpp"

namespace strata::ops::activation_test {
namespace {

using namespace test;

constexpr Activation kAll[] = {Activation::kNone,    Activation::kRelu, Activation::kGelu,
                               Activation::kGeluErf, Activation::kTanh, Activation::kSigmoid};

double reference(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      // 1 + tanh(u) as 2 / (1 + exp(-2 u)), which does not cancel.
      return x / (1.0 +
                  std::exp(-2.0 * std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
  }
  return 0.0;
}

TEST(Activation, NamesReadBack) {
  for (const Activation activation : kAll) {
    EXPECT_EQ(enum_from_name<Activation>(name_of(activation)), activation);
  }
}

TEST(Activation, FloatIsWithinAFewUnitsInTheLastPlace) {
  Context context(1);
  constexpr std::int64_t kCount = 400001;
  Tensor<float> x({kCount});
  Tensor<float> y({kCount});
  for (std::int64_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(-20.0 + 1e-4 * static_cast<double>(i));
  }
  for (const Activation activation : kAll) {
    activation_forward(context, activation, x.view(), y.view());
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto argument = static_cast<double>(x[i]);
      const double expected = reference(activation, argument);
      // gelu's and sigmoid's tails are powers with large exponents, whose argument is itself
      // rounded to float; gelu_erf's is a product of several factors.
      const double tail = activation == Activation::kGelu      ? 20.0 * std::fabs(argument)
                          : activation == Activation::kSigmoid ? std::fabs(argument)
                          : activation == Activation::kGeluErf ? 2.0
                                                               : 0.0;
      ASSERT_NEAR(static_cast<double>(y[i]), expected,
                  (3.0 + tail) * 0x1p-23 * std::fabs(expected) + 1e-37)
          << name_of(activation) << " of " << x[i];
    }
  }
}

TEST(Activation, SmallAndExtremeArguments) {
  Context context(1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Tensor<float> x({8});
  const float values[] = {1e-20F, -1e-6F, 3e-3F, 100.0F, -100.0F, kInfinity, -kInfinity, NAN};
  std::copy(std::begin(values), std::end(values), x.elements().begin());
  Tensor<float> y({8});
  activation_forward(context, Activation::kTanh, x.view(), y.view());
  EXPECT_EQ(y[0], 1e-20F);
  EXPECT_FLOAT_EQ(y[1], -1e-6F);
  EXPECT_FLOAT_EQ(y[2], std::tanh(3e-3F));
  EXPECT_EQ(y[3], 1.0F);
  EXPECT_EQ(y[4], -1.0F);
  EXPECT_EQ(y[5], 1.0F);
  EXPECT_EQ(y[6], -1.0F);
  activation_forward(context, Activation::kSigmoid, x.view(), y.view());
  EXPECT_EQ(y[5], 1.0F);
  EXPECT_EQ(y[6], 0.0F);
  for (const Activation activation : kAll) {
    activation_forward(context, activation, x.view(), y.view());
    EXPECT_TRUE(std::isnan(y[7])) << name_of(activation);
  }
}

TEST(Activation, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  const Shape shape{3, 37};
  auto x = randoms<double>(shape, 1, 2.0);
  const auto dy = randoms<double>(shape, 2);
  Tensor<double> y(shape);
  Tensor<double> dx(shape);
  for (const Activation activation : kAll) {
    activation_forward(context, activation, x.view(), y.view());
    activation_backward(context, activation, x.view(), y.view(), dy.view(), dx.view());
    const std::vector<double> gradient = dx.values();
    expect_gradient(
        [&] {
          activation_forward(context, activation, x.view(), y.view());
          return dot(dy, y);
        },
        x.elements(), gradient);
  }
}

template <typename T>
class ActivationTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationTyped, Types);

TYPED_TEST(ActivationTyped, BitsDependOnNeitherThreadsNorSlicesNorPlace) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 40003;
  for (const Activation activation : kAll) {
    Context one(1);
    const auto x = randoms<T>({kCount}, 5, 3.0);
    const auto dy = randoms<T>({kCount}, 6);
    Tensor<T> y({kCount});
    Tensor<T> dx({kCount});
    activation_forward(one, activation, x.view(), y.view());
    activation_backward(one, activation, x.view(), y.view(), dy.view(), dx.view());
    for (const int threads : {1, 2, 4}) {
      Context context(threads);
      auto in = randoms<T>({kCount}, 5, 3.0, 3);
      auto gradient = randoms<T>({kCount}, 6, 1.0, 1);
      Tensor<T> out({kCount}, 7);
      // In two slices with an odd boundary; backward in place.
      for (const auto& [begin, count] :
           {std::pair<std::int64_t, std::int64_t>{0, 12345}, {12345, kCount - 12345}}) {
        const auto part = out.view().flat_slice(begin, count);
        const auto slope = gradient.view().flat_slice(begin, count);
        activation_forward(context, activation, in.view().flat_slice(begin, count), part);
        activation_backward(context, activation, in.view().flat_slice(begin, count), part, slope,
                            slope);
      }
      EXPECT_TRUE(y.values() == out.values()) << name_of(activation);
      EXPECT_TRUE(dx.values() == gradient.values()) << name_of(activation);
      activation_forward(context, activation, in.view(), in.view());
      EXPECT_TRUE(y.values() == in.values()) << name_of(activation);
    }
  }
}

TYPED_TEST(ActivationTyped, GeluErfAndItsSlopeAreThoseOfTheNormalDistribution) {
  using T = TypeParam;
  Context context(2);
  constexpr std::int64_t kCount = 90001;
  Tensor<T> x({kCount});
  Tensor<T> ones({kCount});
  Tensor<T> y({kCount});
  Tensor<T> dx({kCount});
  // Down to results that are no longer normal numbers.
  const double least = std::is_same_v<T, float> ? -12.9 : -37.2;
  for (std::int64_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<T>(least + 5e-4 * static_cast<double>(i));
    ones[i] = T{1};
  }
  activation_forward(context, Activation::kGeluErf, x.view(), y.view());
  activation_backward(context, Activation::kGeluErf, x.view(), {}, ones.view(), dx.view());
  constexpr long double kAllowed = 5.0L * std::numeric_limits<T>::epsilon();
  for (std::int64_t i = 0; i < kCount; ++i) {
    const long double at = x[i];
    const long double below = 0.5L * std::erfc(-at / std::numbers::sqrt2_v<long double>);
    const long double steep = at * std::exp(-0.5L * at * at) *
                              std::numbers::inv_sqrtpi_v<long double> /
                              std::numbers::sqrt2_v<long double>;
    ASSERT_LE(std::fabs(y[i] - at * below), kAllowed * std::fabs(at * below)) << at;
    ASSERT_LE(std::fabs(dx[i] - (below + steep)), kAllowed * (below + std::fabs(steep))) << at;
  }
}

TYPED_TEST(ActivationTyped, SoftmaxAgreesWithItsFormula) {
  using T = TypeParam;
  Context context(2);
  for (const std::int64_t n : {1, 2, 10, 33, 5000}) {
    const auto x = randoms<T>({7, n}, 3, 4.0);
    Tensor<T> y({7, n});
    softmax_forward(context, x.view(), y.view());
    for (std::int64_t row = 0; row < 7; ++row) {
      std::vector<double> expected;
      double sum = 0.0;
      for (std::int64_t i = 0; i < n; ++i) {
        expected.push_back(std::exp(static_cast<double>(x[row * n + i])));
        sum += expected.back();
      }
      for (double& value : expected) {
        value /= sum;
      }
      const auto rows = std::as_const(y).elements().subspan(static_cast<std::size_t>(row * n),
                                                            static_cast<std::size_t>(n));
      EXPECT_LT((relative_error<T, double>(rows, expected)), kTolerance<T>);
    }
  }
}

TEST(Softmax, TakesLargeLogits) {
  Context context(1);
  Tensor<float> x({1, 3});
  x[0] = 1000.0F;
  x[1] = 1000.0F;
  x[2] = -1000.0F;
  softmax_forward(context, x.view(), x.view());
  EXPECT_EQ(x.values(), (std::vector<float>{0.5F, 0.5F, 0.0F}));
}

TEST(Softmax, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  const Shape shape{2, 21};
  auto x = randoms<double>(shape, 1);
  const auto dy = randoms<double>(shape, 2);
  Tensor<double> y(shape);
  Tensor<double> dx(shape);
  softmax_forward(context, x.view(), y.view());
  softmax_backward(context, y.view(), dy.view(), dx.view());
  expect_gradient(
      [&] {
        softmax_forward(context, x.view(), y.view());
        return dot(dy, y);
      },
      x.elements(), dx.values());
}

TYPED_TEST(ActivationTyped, SoftmaxBitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  const Shape shape{61, 1037};
  std::vector<T> first;
  std::vector<T> first_gradient;
  for (const int threads : {1, 2, 4}) {
    Context context(threads);
    for (const std::size_t misalignment : {0, 3}) {
      auto x = randoms<T>(shape, 8, 2.0, misalignment);
      auto dy = randoms<T>(shape, 9, 1.0, misalignment);
      softmax_forward(context, x.view(), x.view());
      softmax_backward(context, x.view(), dy.view(), dy.view());
      if (first.empty()) {
        first = x.values();
        first_gradient = dy.values();
      }
      EXPECT_TRUE(first == x.values());
      EXPECT_TRUE(first_gradient == dy.values());
    }
  }
}

}  // namespace
}  // namespace strata::ops::activation_test
