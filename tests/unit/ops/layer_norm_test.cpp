#include "strata/ops/layer_norm.hpp"

#include "tensors.hpp"

namespace strata::ops {
namespace {

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
        bias(randoms<T>({n}, 3, 1.0, misalignment)),
        dy(randoms<T>({rows, n}, 4, 1.0, misalignment)),
        y({rows, n}, misalignment),
        mean({rows}),
        rstd({rows}),
        dx({rows, n}, misalignment),
        dgain({n}),
        dbias({n}) {}

  void forward(Context& context) {
    layer_norm_forward(context, x.view(), gain.view(), bias.view(), kEpsilon, y.view(), mean.view(),
                       rstd.view());
  }
  void backward(Context& context, Accumulate accumulate = Accumulate::kOverwrite) {
    layer_norm_backward_input(context, x.view(), gain.view(), mean.view(), rstd.view(), dy.view(),
                              dx.view());
    layer_norm_backward_weight(context, x.view(), mean.view(), rstd.view(), dy.view(), dgain.view(),
                               dbias.view(), accumulate);
  }

  Tensor<T> x;
  Tensor<T> gain;
  Tensor<T> bias;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<T> mean;
  Tensor<T> rstd;
  Tensor<T> dx;
  Tensor<T> dgain;
  Tensor<T> dbias;
};

template <typename T>
class LayerNormTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LayerNormTyped, Types);

TYPED_TEST(LayerNormTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  for (const std::int64_t n : {2, 5, 16, 100, 3000}) {
    Layer<T> layer(4, n);
    layer.forward(context);
    std::vector<double> expected;
    for (std::int64_t row = 0; row < 4; ++row) {
      double mean = 0.0;
      double variance = 0.0;
      for (std::int64_t i = 0; i < n; ++i) {
        mean += static_cast<double>(layer.x[row * n + i]) / static_cast<double>(n);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        variance +=
            std::pow(static_cast<double>(layer.x[row * n + i]) - mean, 2) / static_cast<double>(n);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        expected.push_back((static_cast<double>(layer.x[row * n + i]) - mean) /
                               std::sqrt(variance + kEpsilon) * static_cast<double>(layer.gain[i]) +
                           static_cast<double>(layer.bias[i]));
      }
    }
    EXPECT_LT((relative_error<T, double>(layer.y.elements(), expected)), kTolerance<T>) << n;
  }
}

TEST(LayerNorm, BackwardAgreesWithFiniteDifferences) {
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
  expect_gradient(loss, layer.bias.elements(), layer.dbias.values());
}

TEST(LayerNorm, WorksWithoutBias) {
  Context context(1);
  Layer<float> with(5, 40);
  std::fill(with.bias.elements().begin(), with.bias.elements().end(), 0.0F);
  with.forward(context);
  Layer<float> without(5, 40);
  layer_norm_forward(context, without.x.view(), without.gain.view(), {}, kEpsilon, without.y.view(),
                     without.mean.view(), without.rstd.view());
  EXPECT_TRUE(with.y.values() == without.y.values());
  with.backward(context);
  layer_norm_backward_weight(context, without.x.view(), without.mean.view(), without.rstd.view(),
                             without.dy.view(), without.dgain.view(), {}, Accumulate::kOverwrite);
  EXPECT_TRUE(with.dgain.values() == without.dgain.values());
}

TEST(LayerNorm, WeightGradientsAreAdded) {
  Context context(1);
  Layer<double> layer(6, 33);
  layer.forward(context);
  layer.backward(context);
  const std::vector<double> once = layer.dgain.values();
  const std::vector<double> once_bias = layer.dbias.values();
  layer.backward(context, Accumulate::kAdd);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(layer.dgain.values()[i], once[i] + once[i]);
    EXPECT_EQ(layer.dbias.values()[i], once_bias[i] + once_bias[i]);
  }
}

TYPED_TEST(LayerNormTyped, InputGradientsAreAdded) {
  using T = TypeParam;
  Layer<T> layer(7, 1033);
  for (const int threads : {1, 3}) {
    Context context(threads);
    layer.forward(context);
    layer.backward(context);
    auto added = randoms<T>({7, 1033}, 9);
    const auto before = added.values();
    layer_norm_backward_input(context, layer.x.view(), layer.gain.view(), layer.mean.view(),
                              layer.rstd.view(), layer.dy.view(), added.view(), Accumulate::kAdd);
    for (std::int64_t i = 0; i < 7 * 1033; ++i) {
      ASSERT_EQ(added[i], before[static_cast<std::size_t>(i)] + layer.dx[i]);
    }
  }
}

TYPED_TEST(LayerNormTyped, BitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  std::vector<std::vector<T>> first;
  for (const int threads : {1, 2, 4}) {
    Context context(threads);
    for (const std::size_t misalignment : {0, 3}) {
      Layer<T> layer(77, 1205, misalignment);
      layer.forward(context);
      layer.backward(context);
      const std::vector<std::vector<T>> now{layer.y.values(), layer.dx.values(),
                                            layer.dgain.values(), layer.dbias.values()};
      if (first.empty()) {
        first = now;
      }
      EXPECT_TRUE(first == now) << threads << " threads, misaligned by " << misalignment;
    }
  }
}

}  // namespace
}  // namespace strata::ops
