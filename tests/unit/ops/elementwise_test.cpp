#include "strata/ops/elementwise.hpp"

#include "tensors.hpp"

namespace strata::ops::elementwise_test {
namespace {

using namespace test;

template <typename T>
class ElementwiseTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ElementwiseTyped, Types);

TYPED_TEST(ElementwiseTyped, EachDoesWhatItSays) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 50003;
  for (const int threads : {1, 3}) {
    Context context(threads);
    const auto x = randoms<T>({kCount}, 1);
    auto y = randoms<T>({kCount}, 2, 1.0, 1);
    const auto before = randoms<T>({kCount}, 2);
    add(context, x.view(), y.view());
    for (std::int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(y[i], before[i] + x[i]);
    }
    copy(context, x.view(), y.view());
    EXPECT_TRUE(x.values() == y.values());
    fill_zero(context, y.view());
    EXPECT_TRUE(y.values() == std::vector<T>(kCount, T{0}));
  }
}

template <typename T, typename Sum>
void check_bias_residual(const Shape& shape) {
  using C = Compute<T>;
  const std::int64_t n = shape.back();
  const auto sum = randoms<Sum>(shape, 1);
  const auto bias = randoms<T>({n}, 2);
  const auto residual = randoms<T>(shape, 3);
  for (const int threads : {1, 3}) {
    Context context(threads);
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        Tensor<T> y(shape, 1);
        add_bias_residual(context, sum.view(), with_bias ? bias.view() : ConstTensorView{},
                          with_residual ? residual.view() : ConstTensorView{}, y.view());
        for (std::int64_t i = 0; i < shape.count(); ++i) {
          C expected = static_cast<C>(sum[i]);
          expected += with_bias ? static_cast<C>(bias[i % n]) : C{0};
          expected += with_residual ? static_cast<C>(residual[i]) : C{0};
          ASSERT_EQ(y[i], static_cast<T>(expected)) << i;
        }
      }
    }
  }
}

TEST(Elementwise, AddsBiasThenResidualAndRoundsOnce) {
  for (const Shape& shape : {Shape{37, 1203}, Shape{1, 5}, Shape{3, 2, 130}}) {
    check_bias_residual<float, float>(shape);
    check_bias_residual<double, double>(shape);
    check_bias_residual<BFloat16, BFloat16>(shape);
    check_bias_residual<BFloat16, float>(shape);
  }
}

TEST(Elementwise, AddsBiasInPlace) {
  Context context(1);
  const auto bias = randoms<BFloat16>({70}, 2);
  auto y = randoms<BFloat16>({4, 70}, 1);
  const auto before = randoms<BFloat16>({4, 70}, 1);
  add_bias_residual(context, y.view(), bias.view(), {}, y.view());
  for (std::int64_t i = 0; i < 280; ++i) {
    ASSERT_EQ(y[i], BFloat16(static_cast<float>(before[i]) + static_cast<float>(bias[i % 70])));
  }
}

TEST(Elementwise, RefusesABiasOfAnotherKind) {
  Context context(1);
  const Tensor<float> sum({2, 4});
  const Tensor<float> bias({3});
  const Tensor<BFloat16> narrow({4});
  Tensor<float> y({2, 4});
  Tensor<double> wide({2, 4});
  EXPECT_THROW(add_bias_residual(context, sum.view(), bias.view(), {}, y.view()), std::logic_error);
  EXPECT_THROW(add_bias_residual(context, sum.view(), narrow.view(), {}, y.view()),
               std::logic_error);
  EXPECT_THROW(add_bias_residual(context, sum.view(), {}, {}, wide.view()), std::logic_error);
  EXPECT_THROW(add_bias_residual(context, sum.view(), {}, bias.view(), y.view()), std::logic_error);
}

TEST(Elementwise, RefusesUnequalCounts) {
  Context context(1);
  const Tensor<float> x({4});
  Tensor<float> y({5});
  EXPECT_THROW(add(context, x.view(), y.view()), std::logic_error);
  EXPECT_THROW(copy(context, x.view(), y.view()), std::logic_error);
}

}  // namespace
}  // namespace strata::ops::elementwise_test
