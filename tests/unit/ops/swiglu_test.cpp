#include <cmath>

#include "strata/ops/activation.hpp"

#include "tensors.hpp"

namespace strata::ops::swiglu_test {
namespace {

using namespace test;

template <typename T>
class SwigluTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SwigluTyped, Types);

TYPED_TEST(SwigluTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 40003;
  const auto gate = randoms<T>({kCount}, 1, 5.0);
  const auto up = randoms<T>({kCount}, 2);
  std::vector<double> expected;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double x = static_cast<double>(gate[i]);
    expected.push_back(x / (1.0 + std::exp(-x)) * static_cast<double>(up[i]));
  }
  std::vector<T> first;
  for (const int threads : {1, 3}) {
    Context context(threads);
    for (const std::size_t misalignment : {0, 5}) {
      Tensor<T> y({kCount}, misalignment);
      swiglu_forward(context, gate.view(), up.view(), y.view());
      EXPECT_LT((relative_error<T, double>(y.elements(), expected)), kTolerance<T>);
      if (first.empty()) {
        first = y.values();
      }
      EXPECT_TRUE(first == y.values());
    }
  }
}

TEST(Swiglu, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  const Shape shape{3, 37};
  auto gate = randoms<double>(shape, 1, 2.0);
  auto up = randoms<double>(shape, 2);
  const auto dy = randoms<double>(shape, 3);
  Tensor<double> y(shape);
  Tensor<double> dgate(shape);
  Tensor<double> dup(shape);
  swiglu_backward(context, gate.view(), up.view(), dy.view(), dgate.view(), dup.view());
  const auto loss = [&] {
    swiglu_forward(context, gate.view(), up.view(), y.view());
    return dot(dy, y);
  };
  expect_gradient(loss, gate.elements(), dgate.values());
  expect_gradient(loss, up.elements(), dup.values());
}

TYPED_TEST(SwigluTyped, BackwardInPlaceIsTheSame) {
  using T = TypeParam;
  const Shape shape{5, 1003};
  const auto gate = randoms<T>(shape, 1, 2.0);
  const auto up = randoms<T>(shape, 2);
  const auto dy = randoms<T>(shape, 3);
  Context one(1);
  Tensor<T> dgate(shape);
  Tensor<T> dup(shape);
  swiglu_backward(one, gate.view(), up.view(), dy.view(), dgate.view(), dup.view());
  Context three(3);
  for (const bool over_up : {false, true}) {
    auto in_place = randoms<T>(shape, 3);
    Tensor<T> other(shape, 1);
    auto& to_gate = over_up ? other : in_place;
    auto& to_up = over_up ? in_place : other;
    swiglu_backward(three, gate.view(), up.view(), in_place.view(), to_gate.view(), to_up.view());
    EXPECT_TRUE(dgate.values() == to_gate.values());
    EXPECT_TRUE(dup.values() == to_up.values());
  }
}

TEST(Swiglu, RefusesOtherShapes) {
  Context context(1);
  Tensor<float> gate({2, 3});
  Tensor<float> up({3, 2});
  EXPECT_THROW(swiglu_forward(context, gate.view(), up.view(), gate.view()), std::logic_error);
}

}  // namespace
}  // namespace strata::ops::swiglu_test
