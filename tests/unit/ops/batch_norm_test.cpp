#include "strata/ops/batch_norm.hpp"

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
Tensor<T> poisoned(const Shape& shape) {
  Tensor<T> tensor(shape);
  std::fill(tensor.elements().begin(), tensor.elements().end(),
            static_cast<T>(std::numeric_limits<Compute<T>>::quiet_NaN()));
  return tensor;
}

template <typename T>
struct Layer {
  using C = Compute<T>;

  Layer(std::int64_t rows, std::int64_t n, Activation of = Activation::kNone)
      : activation(of),
        x(randoms<T>({rows, n}, 1, 2.0)),
        gain(randoms<T>({n}, 2)),
        bias(randoms<T>({n}, 3)),
        dy(randoms<T>({rows, n}, 4)),
        y(poisoned<T>({rows, n})),
        mean(poisoned<C>({n})),
        variance(poisoned<C>({n})),
        dx(poisoned<T>({rows, n})),
        dgain(poisoned<C>({n})),
        dbias(poisoned<C>({n})) {}

  void forward(Context& context) {
    column_statistics(context, x.view(), mean.view(), variance.view());
    batch_norm_forward(context, x.view(), mean.view(), variance.view(), gain.view(), bias.view(),
                       kEpsilon, activation, y.view());
  }
  void backward(Context& context) {
    const ConstTensorView out = activation == Activation::kRelu ? y.view() : ConstTensorView{};
    batch_norm_backward_sums(context, x.view(), mean.view(), variance.view(), kEpsilon, out,
                             dy.view(), dgain.view(), dbias.view());
    batch_norm_backward_input(context, x.view(), mean.view(), variance.view(), gain.view(),
                              kEpsilon, out, dy.view(), dgain.view(), dbias.view(), dx.view());
  }

  Activation activation;
  Tensor<T> x;
  Tensor<T> gain;
  Tensor<T> bias;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<C> mean;
  Tensor<C> variance;
  Tensor<T> dx;
  Tensor<C> dgain;
  Tensor<C> dbias;
};

struct Statistics {
  double mean = 0.0;
  double variance = 0.0;
};

template <typename T>
Statistics statistics_of(const Tensor<T>& x, std::int64_t rows, std::int64_t n, std::int64_t j) {
  long double sum = 0.0L;
  for (std::int64_t row = 0; row < rows; ++row) {
    sum += static_cast<long double>(as_double(x[row * n + j]));
  }
  const long double mean = sum / static_cast<long double>(rows);
  long double squares = 0.0L;
  for (std::int64_t row = 0; row < rows; ++row) {
    const long double apart = static_cast<long double>(as_double(x[row * n + j])) - mean;
    squares += apart * apart;
  }
  return {static_cast<double>(mean), static_cast<double>(squares / static_cast<long double>(rows))};
}

template <typename T>
class BatchNormTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(BatchNormTyped, Types);

template <typename T>
constexpr double kAllowed = sizeof(T) == 2 ? 4e-3 : kTolerance<T>;

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
    const Statistics expected = statistics_of(x, kRows, kColumns, j);
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
      Layer<T> layer(rows, n, activation);
      layer.forward(context);
      std::vector<double> expected(layer.y.elements().size());
      for (std::int64_t j = 0; j < n; ++j) {
        const Statistics s = statistics_of(layer.x, rows, n, j);
        for (std::int64_t i = j; i < rows * n; i += n) {
          const double value = (as_double(layer.x[i]) - s.mean) / std::sqrt(s.variance + kEpsilon) *
                                   as_double(layer.gain[j]) +
                               as_double(layer.bias[j]);
          expected[static_cast<std::size_t>(i)] =
              activation == Activation::kRelu ? std::max(value, 0.0) : value;
        }
      }
      const double error = relative_error<T, double>(layer.y.elements(), expected);
      EXPECT_FALSE(error > kAllowed<T>) << rows << " x " << n << " error " << error;
    }
  }
}

TYPED_TEST(BatchNormTyped, BitsDoNotDependOnThreads) {
  using T = TypeParam;
  for (const auto& [rows, n] : {std::pair{1000, 96}, {20000, 3}, {200, 1100}}) {
    Context one(1);
    Layer<T> first(rows, n, Activation::kRelu);
    first.forward(one);
    first.backward(one);
    for (const int threads : {2, 3, 4}) {
      Context context(threads);
      Layer<T> layer(rows, n, Activation::kRelu);
      layer.forward(context);
      layer.backward(context);
      EXPECT_TRUE(first.mean.values() == layer.mean.values());
      EXPECT_TRUE(first.variance.values() == layer.variance.values());
      EXPECT_TRUE(first.y.values() == layer.y.values());
      EXPECT_TRUE(first.dgain.values() == layer.dgain.values());
      EXPECT_TRUE(first.dbias.values() == layer.dbias.values());
      EXPECT_TRUE(first.dx.values() == layer.dx.values());
    }
  }
}

TYPED_TEST(BatchNormTyped, GradientsMayReplaceWhatTheyComeFrom) {
  using T = TypeParam;
  Context context(2);
  Layer<T> layer(70, 33, Activation::kRelu);
  layer.forward(context);
  layer.backward(context);
  const auto apart = layer.dx.values();
  batch_norm_backward_input(context, layer.x.view(), layer.mean.view(), layer.variance.view(),
                            layer.gain.view(), kEpsilon, layer.y.view(), layer.dy.view(),
                            layer.dgain.view(), layer.dbias.view(), layer.dy.view());
  EXPECT_TRUE(apart == layer.dy.values());
}

TEST(BatchNorm, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
    Layer<double> layer(11, 5, activation);
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

TEST(BatchNorm, GradientsOfBfloat16AreThoseOfItsNumbers) {
  Context context(2);
  Layer<BFloat16> narrow(300, 40, Activation::kRelu);
  Layer<double> wide(300, 40, Activation::kRelu);
  const auto copy = [](const Tensor<BFloat16>& from, Tensor<double>& to) {
    std::transform(from.elements().begin(), from.elements().end(), to.elements().begin(),
                   as_double<BFloat16>);
  };
  copy(narrow.x, wide.x);
  copy(narrow.gain, wide.gain);
  copy(narrow.bias, wide.bias);
  copy(narrow.dy, wide.dy);
  for (auto run : {0, 1}) {
    run == 0 ? narrow.forward(context) : narrow.backward(context);
    run == 0 ? wide.forward(context) : wide.backward(context);
  }
  EXPECT_LT((relative_error<BFloat16, double>(narrow.dx.elements(), wide.dx.elements())), 4e-3);
  EXPECT_LT((relative_error<float, double>(narrow.dgain.elements(), wide.dgain.elements())), 2e-6);
  EXPECT_LT((relative_error<float, double>(narrow.dbias.elements(), wide.dbias.elements())), 2e-6);
}

TEST(BatchNorm, StatisticsMayHaveTheDtypeOfTheInput) {
  Context context(1);
  Layer<BFloat16> layer(9, 7);
  auto mean = randoms<BFloat16>({7}, 5);
  auto variance = randoms<BFloat16>({7}, 6);
  for (std::int64_t j = 0; j < 7; ++j) {
    variance[j] = BFloat16(std::fabs(static_cast<float>(variance[j])) + 1.0F);
    layer.mean[j] = static_cast<float>(mean[j]);
    layer.variance[j] = static_cast<float>(variance[j]);
  }
  Tensor<BFloat16> y({9, 7});
  batch_norm_forward(context, layer.x.view(), layer.mean.view(), layer.variance.view(),
                     layer.gain.view(), layer.bias.view(), kEpsilon, Activation::kNone,
                     layer.y.view());
  batch_norm_forward(context, layer.x.view(), mean.view(), variance.view(), layer.gain.view(),
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
  Layer<float> layer(4, 6);
  EXPECT_NO_THROW(layer.forward(context));
  layer.activation = Activation::kGelu;
  EXPECT_THROW(layer.forward(context), std::logic_error);
  Tensor<double> wide({6});
  EXPECT_THROW(column_statistics(context, layer.x.view(), wide.view(), layer.variance.view()),
               std::logic_error);
  Tensor<float> narrow({5});
  EXPECT_THROW(column_statistics(context, layer.x.view(), layer.mean.view(), narrow.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops
