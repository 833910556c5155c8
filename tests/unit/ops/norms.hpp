#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "strata/ops/activation.hpp"

#include "tensors.hpp"

/// What the tests of all normalisations share.
namespace strata::ops::test {

inline constexpr double kEpsilon = 1e-5;

struct Statistics {
  double mean = 0.0;
  double variance = 0.0;
};

/// Of the elements at(0) to at(count - 1) of x.
template <typename T, typename At>
Statistics statistics_of(const Tensor<T>& x, std::int64_t count, const At& at) {
  long double sum = 0.0L;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += static_cast<long double>(as_double(x[at(i)]));
  }
  const long double mean = sum / static_cast<long double>(count);
  long double squares = 0.0L;
  for (std::int64_t i = 0; i < count; ++i) {
    const long double apart = static_cast<long double>(as_double(x[at(i)])) - mean;
    squares += apart * apart;
  }
  return {static_cast<double>(mean),
          static_cast<double>(squares / static_cast<long double>(count))};
}

/// What a normalisation is given and makes; what it makes is NaN until it is computed. A Norm has
/// the shapes input(), weight(), bias(), mean() and spread(), of no elements where it has no such
/// tensor, and forward(context, layer) and backward(context, layer, further arguments).
template <typename T, typename Norm>
struct NormLayer {
  using Element = T;
  using C = Compute<T>;

  explicit NormLayer(const Norm& of, std::size_t misalignment = 0)
      : norm(of),
        x(randoms<T>(of.input(), 1, 2.0, misalignment)),
        weight(randoms<T>(of.weight(), 2, 1.0, misalignment)),
        bias(randoms<T>(of.bias(), 3, 1.0, misalignment)),
        dy(randoms<T>(of.input(), 4, 1.0, misalignment)),
        y(poisoned<T>(of.input(), misalignment)),
        mean(poisoned<C>(of.mean())),
        spread(poisoned<C>(of.spread())),
        dx(poisoned<T>(of.input(), misalignment)),
        dweight(poisoned<C>(of.weight())),
        dbias(poisoned<C>(of.bias())) {}

  void forward(Context& context) { norm.forward(context, *this); }
  template <typename... Further>
  void backward(Context& context, Further... further) {
    norm.backward(context, *this, further...);
  }
  /// Gives the gradients numbers to be added to.
  void start_gradients() {
    const Tensor<T> start = randoms<T>(norm.input(), 5);
    std::copy(start.elements().begin(), start.elements().end(), dx.elements().begin());
    std::fill(dweight.elements().begin(), dweight.elements().end(), C{0});
    std::fill(dbias.elements().begin(), dbias.elements().end(), C{0});
  }

  Norm norm;
  Tensor<T> x;
  Tensor<T> weight;
  Tensor<T> bias;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<C> mean;
  Tensor<C> spread;  ///< the variance, or one over the deviation
  Tensor<T> dx;
  Tensor<C> dweight;
  Tensor<C> dbias;
};

/// Holds y to (x - mean) / sqrt(variance + epsilon) times weight plus bias, where the elements
/// at(part, 0) to at(part, count - 1) of each part are normalised together.
template <typename Layer, typename At>
void expect_normalised(const Layer& layer, std::int64_t parts, std::int64_t count, const At& at,
                       Activation activation = Activation::kNone) {
  using T = typename Layer::Element;
  const std::int64_t channels = layer.weight.view().count();
  std::vector<double> expected(layer.y.elements().size());
  for (std::int64_t part = 0; part < parts; ++part) {
    const Statistics s = statistics_of(layer.x, count, [&](std::int64_t i) { return at(part, i); });
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t element = at(part, i);
      const double value = (as_double(layer.x[element]) - s.mean) /
                               std::sqrt(s.variance + kEpsilon) *
                               as_double(layer.weight[element % channels]) +
                           as_double(layer.bias[element % channels]);
      expected[static_cast<std::size_t>(element)] =
          activation == Activation::kRelu ? std::max(value, 0.0) : value;
    }
  }
  const double error = relative_error<T, double>(layer.y.elements(), expected);
  // After relu all may be 0, whose norm is none.
  const bool same = std::equal(expected.begin(), expected.end(), layer.y.elements().begin(),
                               [](double a, T b) { return a == as_double(b); });
  EXPECT_TRUE(same || error < kStoredTolerance<T>)
      << layer.norm.input().text() << " error " << error;
}

/// Holds all that a normalisation makes to the bits that one thread makes of aligned tensors. With
/// Accumulate::kAdd further, gradients are added to numbers.
template <typename T, typename Norm, typename... Further>
void expect_same_bits(const Norm& norm, Further... further) {
  const auto run = [&](int threads, std::size_t misalignment) {
    Context context(threads);
    NormLayer<T, Norm> layer(norm, misalignment);
    if constexpr (sizeof...(Further) > 0) {
      layer.start_gradients();
    }
    layer.forward(context);
    layer.backward(context, further...);
    return layer;
  };
  const NormLayer<T, Norm> first = run(1, 0);
  for (const int threads : {1, 2, 3, 4}) {
    for (const std::size_t misalignment : {0, 3}) {
      SCOPED_TRACE(testing::Message() << norm.input().text() << ", " << threads
                                      << " threads, misaligned by " << misalignment);
      const NormLayer<T, Norm> layer = run(threads, misalignment);
      EXPECT_TRUE(first.mean.values() == layer.mean.values());
      EXPECT_TRUE(first.spread.values() == layer.spread.values());
      EXPECT_TRUE(first.y.values() == layer.y.values());
      EXPECT_TRUE(first.dx.values() == layer.dx.values());
      EXPECT_TRUE(first.dweight.values() == layer.dweight.values());
      EXPECT_TRUE(first.dbias.values() == layer.dbias.values());
    }
  }
}

/// Holds every gradient to central differences.
template <typename Norm>
void expect_norm_gradients(const Norm& norm) {
  Context context(1);
  NormLayer<double, Norm> layer(norm);
  layer.forward(context);
  layer.backward(context);
  const auto loss = [&] {
    layer.forward(context);
    return dot(layer.dy, layer.y);
  };
  expect_gradient(loss, layer.x.elements(), layer.dx.values());
  expect_gradient(loss, layer.weight.elements(), layer.dweight.values());
  expect_gradient(loss, layer.bias.elements(), layer.dbias.values());
}

/// Gradients of weight and bias, added to themselves, double.
template <typename T, typename Norm>
void expect_weight_gradients_added(const Norm& norm) {
  Context context(2);
  NormLayer<T, Norm> layer(norm);
  layer.forward(context);
  layer.backward(context);
  const auto once = layer.dweight.values();
  const auto once_bias = layer.dbias.values();
  layer.backward(context, Accumulate::kAdd);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(layer.dweight.elements()[i], once[i] + once[i]);
  }
  for (std::size_t i = 0; i < once_bias.size(); ++i) {
    EXPECT_EQ(layer.dbias.elements()[i], once_bias[i] + once_bias[i]);
  }
}

}  // namespace strata::ops::test
