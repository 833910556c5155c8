// Operations on bfloat16 against themselves on float, given the same numbers.
#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>

#include "strata/ops/activation.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/head_norm.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/row_norm.hpp"

#include "loss_sums.hpp"
#include "tensors.hpp"

namespace strata::ops::bfloat16_test {
namespace {

using namespace test;

const Shape kShape{37, 1203};

/// The same numbers as float.
Tensor<float> widened(const Tensor<BFloat16>& narrow) {
  Tensor<float> wide(narrow.view().shape());
  std::transform(narrow.elements().begin(), narrow.elements().end(), wide.elements().begin(),
                 [](BFloat16 element) { return static_cast<float>(element); });
  return wide;
}

/// What `results` are rounded from is `wide`, for they come of the same float operations.
void expect_rounded(const Tensor<BFloat16>& results, const Tensor<float>& wide) {
  for (std::int64_t i = 0; i < wide.view().count(); ++i) {
    ASSERT_EQ(results[i], BFloat16(wide[i])) << "element " << i << " of " << wide[i];
  }
}

/// Runs with 1 thread and with 3.
void with_threads(const std::function<void(Context&)>& check) {
  for (const int threads : {1, 3}) {
    Context context(threads);
    check(context);
  }
}

TEST(Bfloat16, ActivationsRoundOnce) {
  const auto x = randoms<BFloat16>(kShape, 1, 3.0);
  const auto dy = randoms<BFloat16>(kShape, 2);
  const auto wide_x = widened(x);
  const auto wide_dy = widened(dy);
  with_threads([&](Context& context) {
    for (const Activation activation :
         {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kGeluErf,
          Activation::kTanh, Activation::kSigmoid}) {
      Tensor<BFloat16> y(kShape, 3);
      Tensor<float> wide_y(kShape);
      activation_forward(context, activation, x.view(), y.view());
      activation_forward(context, activation, wide_x.view(), wide_y.view());
      expect_rounded(y, wide_y);
      const auto read_y = widened(y);
      Tensor<BFloat16> dx(kShape, 1);
      Tensor<float> wide_dx(kShape);
      activation_backward(context, activation, x.view(), y.view(), dy.view(), dx.view());
      activation_backward(context, activation, wide_x.view(), read_y.view(), wide_dy.view(),
                          wide_dx.view());
      expect_rounded(dx, wide_dx);
    }
  });
}

TEST(Bfloat16, GatedUnitsRoundOnce) {
  const auto gate = randoms<BFloat16>(kShape, 1, 3.0);
  const auto up = randoms<BFloat16>(kShape, 2);
  const auto dy = randoms<BFloat16>(kShape, 3);
  const auto wide_gate = widened(gate);
  const auto wide_up = widened(up);
  with_threads([&](Context& context) {
    for (const Gate function : {Gate::kSilu, Gate::kGelu}) {
      Tensor<BFloat16> y(kShape);
      Tensor<float> wide_y(kShape);
      gated_forward(context, function, gate.view(), up.view(), y.view());
      gated_forward(context, function, wide_gate.view(), wide_up.view(), wide_y.view());
      expect_rounded(y, wide_y);
      Tensor<BFloat16> dgate(kShape);
      auto dup = randoms<BFloat16>(kShape, 3);
      Tensor<float> wide_dgate(kShape);
      auto wide_dup = widened(dy);
      gated_backward(context, function, gate.view(), up.view(), dup.view(), dgate.view(),
                     dup.view());
      gated_backward(context, function, wide_gate.view(), wide_up.view(), wide_dup.view(),
                     wide_dgate.view(), wide_dup.view());
      expect_rounded(dgate, wide_dgate);
      expect_rounded(dup, wide_dup);
    }
  });
}

TEST(Bfloat16, SoftmaxRoundsOnce) {
  const auto x = randoms<BFloat16>(kShape, 1, 3.0);
  const auto dy = randoms<BFloat16>(kShape, 2);
  with_threads([&](Context& context) {
    Tensor<BFloat16> y(kShape);
    auto wide_y = widened(x);
    softmax_forward(context, x.view(), y.view());
    softmax_forward(context, wide_y.view(), wide_y.view());
    expect_rounded(y, wide_y);
    const auto read_y = widened(y);
    Tensor<BFloat16> dx(kShape);
    auto wide_dx = widened(dy);
    softmax_backward(context, y.view(), dy.view(), dx.view());
    softmax_backward(context, read_y.view(), wide_dx.view(), wide_dx.view());
    expect_rounded(dx, wide_dx);
  });
}

TEST(Bfloat16, LayerNormRoundsOnce) {
  const std::int64_t rows = kShape[0];
  const std::int64_t n = kShape[1];
  const auto x = randoms<BFloat16>(kShape, 1, 2.0);
  const auto weight = randoms<BFloat16>({n}, 2);
  const auto bias = randoms<BFloat16>({n}, 3);
  const auto dy = randoms<BFloat16>(kShape, 4);
  const auto wide_x = widened(x);
  const auto wide_weight = widened(weight);
  const auto wide_bias = widened(bias);
  const auto wide_dy = widened(dy);
  with_threads([&](Context& context) {
    Tensor<float> mean({rows});
    Tensor<float> rstd({rows});
    Tensor<BFloat16> y(kShape);
    Tensor<float> wide_y(kShape);
    row_norm_forward(context, {Center::kMean}, x.view(), weight.view(), bias.view(), 1e-5, y.view(),
                     mean.view(), rstd.view());
    row_norm_forward(context, {Center::kMean}, wide_x.view(), wide_weight.view(), wide_bias.view(),
                     1e-5, wide_y.view(), mean.view(), rstd.view());
    expect_rounded(y, wide_y);
    for (const auto accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
      const bool adds = accumulate == Accumulate::kAdd;
      auto dx = randoms<BFloat16>(kShape, 5);
      auto wide_dx = widened(dx);
      row_norm_backward_input(context, {Center::kMean}, x.view(), weight.view(), mean.view(),
                              rstd.view(), dy.view(), adds ? dx.view() : TensorView(), dx.view());
      row_norm_backward_input(context, {Center::kMean}, wide_x.view(), wide_weight.view(),
                              mean.view(), rstd.view(), wide_dy.view(),
                              adds ? wide_dx.view() : TensorView(), wide_dx.view());
      expect_rounded(dx, wide_dx);
      auto dweight = randoms<float>({n}, 6);
      auto dbias = randoms<float>({n}, 7);
      auto wide_dweight = randoms<float>({n}, 6);
      auto wide_dbias = randoms<float>({n}, 7);
      row_norm_backward_weight(context, {Center::kMean}, x.view(), mean.view(), rstd.view(),
                               dy.view(), dweight.view(), dbias.view(), accumulate);
      row_norm_backward_weight(context, {Center::kMean}, wide_x.view(), mean.view(), rstd.view(),
                               wide_dy.view(), wide_dweight.view(), wide_dbias.view(), accumulate);
      EXPECT_TRUE(dweight.values() == wide_dweight.values());
      EXPECT_TRUE(dbias.values() == wide_dbias.values());
    }
  });
}

TEST(Bfloat16, HeadNormRoundsOnce) {
  const AttentionShape shape{.tokens = kShape[0], .kv_heads = 3, .queries = 2, .head_size = 20};
  const Shape all{shape.rows(), shape.qkv_width()};
  const auto qkv = randoms<BFloat16>(all, 1, 2.0);
  const auto query_weight = randoms<BFloat16>({shape.width()}, 2);
  const auto key_weight = randoms<BFloat16>({shape.head_size}, 3);
  const auto wide_qkv = widened(qkv);
  const auto wide_query_weight = widened(query_weight);
  const auto wide_key_weight = widened(key_weight);
  with_threads([&](Context& context) {
    Tensor<BFloat16> y(all);
    Tensor<float> wide_y(all);
    head_norm_forward(context, shape, qkv.view(), query_weight.view(), key_weight.view(), {},
                      y.view());
    head_norm_forward(context, shape, wide_qkv.view(), wide_query_weight.view(),
                      wide_key_weight.view(), {}, wide_y.view());
    expect_rounded(y, wide_y);
    auto dqkv = randoms<BFloat16>(all, 4);
    auto wide_dqkv = widened(dqkv);
    Tensor<float> dquery_weight({shape.width()});
    Tensor<float> wide_dquery_weight({shape.width()});
    Tensor<float> dkey_weight({shape.head_size});
    Tensor<float> wide_dkey_weight({shape.head_size});
    head_norm_backward(context, shape, qkv.view(), query_weight.view(), key_weight.view(), {},
                       dqkv.view(), dquery_weight.view(), dkey_weight.view());
    head_norm_backward(context, shape, wide_qkv.view(), wide_query_weight.view(),
                       wide_key_weight.view(), {}, wide_dqkv.view(), wide_dquery_weight.view(),
                       wide_dkey_weight.view());
    expect_rounded(dqkv, wide_dqkv);
    EXPECT_TRUE(dquery_weight.values() == wide_dquery_weight.values());
    EXPECT_TRUE(dkey_weight.values() == wide_dkey_weight.values());
  });
}

TEST(Bfloat16, DropoutRoundsOnce) {
  const RandomStream stream(1, RandomPurpose::kDropout, 2);
  const auto x = randoms<BFloat16>(kShape, 1);
  const auto wide_x = widened(x);
  with_threads([&](Context& context) {
    Tensor<BFloat16> y(kShape);
    Tensor<float> wide_y(kShape);
    Tensor<std::uint8_t> mask(kShape);
    Tensor<std::uint8_t> wide_mask(kShape);
    dropout_forward(context, x.view(), 0.3, stream, {5}, y.view(), mask.view());
    dropout_forward(context, wide_x.view(), 0.3, stream, {5}, wide_y.view(), wide_mask.view());
    EXPECT_TRUE(mask.values() == wide_mask.values());
    expect_rounded(y, wide_y);
    Tensor<BFloat16> dx(kShape);
    dropout_backward(context, x.view(), mask.view(), 0.3, dx.view());
    EXPECT_TRUE(dx.values() == y.values());
  });
}

TEST(Bfloat16, LossesAreThoseOfTheSameNumbers) {
  const auto x = randoms<BFloat16>(kShape, 1, 3.0);
  const auto target = randoms<BFloat16>(kShape, 2);
  const auto wide_x = widened(x);
  const auto wide_target = widened(target);
  Tensor<std::int64_t> labels({kShape[0]});
  for (std::int64_t row = 0; row < kShape[0]; ++row) {
    labels[row] = row * 31 % kShape[1];
  }
  with_threads([&](Context& context) {
    Tensor<BFloat16> dx(kShape);
    Tensor<float> wide_dx(kShape);
    const std::int64_t valid = kShape[0] - 3;
    LossSums sums = cross_entropy_sums(context, x.view(), labels.view(), valid, 0.25, dx.view());
    LossSums wide =
        cross_entropy_sums(context, wide_x.view(), labels.view(), valid, 0.25, wide_dx.view());
    EXPECT_EQ(sums.loss, wide.loss);
    EXPECT_EQ(sums.correct, wide.correct);
    expect_rounded(dx, wide_dx);
    EXPECT_EQ(cross_entropy_sums(context, x.view(), labels.view(), valid, 0.25, {}).loss,
              wide.loss);
    sums = squared_error_sums(context, x.view(), target.view(), valid, 0.25, dx.view());
    wide =
        squared_error_sums(context, wide_x.view(), wide_target.view(), valid, 0.25, wide_dx.view());
    EXPECT_EQ(sums.loss, wide.loss);
    expect_rounded(dx, wide_dx);
  });
}

TEST(Bfloat16, ElementwiseRoundsOnce) {
  const auto x = randoms<BFloat16>(kShape, 1);
  with_threads([&](Context& context) {
    auto y = randoms<BFloat16>(kShape, 2);
    const auto before = randoms<BFloat16>(kShape, 2);
    add(context, x.view(), y.view());
    for (std::int64_t i = 0; i < kShape.count(); ++i) {
      ASSERT_EQ(y[i], BFloat16(static_cast<float>(before[i]) + static_cast<float>(x[i])));
    }
    copy(context, x.view(), y.view());
    EXPECT_TRUE(x.values() == y.values());
  });
}

template <typename From, typename To>
void check_conversion(const std::function<To(From)>& expected) {
  const auto x = randoms<From>({50003}, 1, 100.0);
  with_threads([&](Context& context) {
    Tensor<To> y({50003}, 1);
    convert(context, x.view(), y.view());
    for (std::int64_t i = 0; i < 50003; ++i) {
      ASSERT_EQ(y[i], expected(x[i]));
    }
  });
}

TEST(Convert, RoundsToNearest) {
  check_conversion<float, BFloat16>([](float value) { return BFloat16(value); });
  check_conversion<float, double>([](float value) { return static_cast<double>(value); });
  check_conversion<double, float>([](double value) { return static_cast<float>(value); });
  check_conversion<BFloat16, float>([](BFloat16 value) { return static_cast<float>(value); });
  check_conversion<BFloat16, double>(
      [](BFloat16 value) { return static_cast<double>(static_cast<float>(value)); });
  check_conversion<double, double>([](double value) { return value; });
}

TEST(Convert, RoundsADoubleOnce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // 1 + 2^-8 lies in the middle of two bfloat16; what is below 2^-24 of it decides.
  const double values[] = {1.0 + 0x1p-8 + 0x1p-40,
                           1.0 + 0x1p-8,
                           1.0 + 0x1p-8 - 0x1p-40,
                           1.0 + 0x3p-8 - 0x1p-40,
                           -1.0 - 0x1p-8 - 0x1p-40,
                           1e300,
                           -kInfinity,
                           std::numeric_limits<double>::quiet_NaN(),
                           0.0};
  const float expected[] = {1.0F + 0x1p-7F,
                            1.0F,
                            1.0F,
                            1.0F + 0x1p-7F,
                            -1.0F - 0x1p-7F,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            0.0F,
                            0.0F};
  Context context(1);
  Tensor<double> x({9});
  std::copy(std::begin(values), std::end(values), x.elements().begin());
  Tensor<BFloat16> y({9});
  convert(context, x.view(), y.view());
  for (std::int64_t i = 0; i < 9; ++i) {
    if (i == 7) {
      EXPECT_TRUE(std::isnan(static_cast<float>(y[i])));
    } else {
      EXPECT_EQ(static_cast<float>(y[i]), expected[i]) << values[i];
    }
  }
}

TEST(Convert, RefusesUnequalCountsAndIntegers) {
  Context context(1);
  const Tensor<float> x({4});
  Tensor<BFloat16> y({5});
  Tensor<std::int64_t> integers({4});
  EXPECT_THROW(convert(context, x.view(), y.view()), std::logic_error);
  EXPECT_THROW(convert(context, x.view(), integers.view()), std::logic_error);
}

}  // namespace
}  // namespace strata::ops::bfloat16_test
