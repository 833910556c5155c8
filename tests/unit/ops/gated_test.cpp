#include <cmath>
#include <numbers>

#include "strata/ops/activation.hpp"

#include "tensors.hpp"

namespace strata::ops::gated_test {
namespace {

using namespace test;

template <typename T>
class GatedTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(GatedTyped, Types);

double formula(Gate function, double x) {
  return function == Gate::kSilu ? x / (1.0 + std::exp(-x))
                                 : 0.5 * x *
                                       (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) *
                                                        (x + 0.044715 * x * x * x)));
}

TYPED_TEST(GatedTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 40003;
  const auto gate = randoms<T>({kCount}, 1, 5.0);
  const auto up = randoms<T>({kCount}, 2);
  for (const auto& [function, name] : enum_table<Gate>()) {
    std::vector<double> expected;
    for (std::int64_t i = 0; i < kCount; ++i) {
      expected.push_back(formula(function, static_cast<double>(gate[i])) *
                         static_cast<double>(up[i]));
    }
    std::vector<T> first;
    for (const int threads : {1, 3}) {
      Context context(threads);
      for (const std::size_t misalignment : {0, 5}) {
        Tensor<T> y({kCount}, misalignment);
        gated_forward(context, function, gate.view(), up.view(), y.view());
        EXPECT_LT((relative_error<T, double>(y.elements(), expected)), kTolerance<T>) << name;
        if (first.empty()) {
          first = y.values();
        }
        EXPECT_TRUE(first == y.values()) << name;
      }
    }
  }
}

TEST(Gated, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  const Shape shape{3, 37};
  for (const auto& [function, name] : enum_table<Gate>()) {
    auto gate = randoms<double>(shape, 1, 2.0);
    auto up = randoms<double>(shape, 2);
    const auto dy = randoms<double>(shape, 3);
    Tensor<double> y(shape);
    Tensor<double> dgate(shape);
    Tensor<double> dup(shape);
    gated_backward(context, function, gate.view(), up.view(), dy.view(), dgate.view(), dup.view());
    const Gate f = function;
    const auto loss = [&] {
      gated_forward(context, f, gate.view(), up.view(), y.view());
      return dot(dy, y);
    };
    expect_gradient(loss, gate.elements(), dgate.values());
    expect_gradient(loss, up.elements(), dup.values());
  }
}

TYPED_TEST(GatedTyped, BackwardInPlaceIsTheSame) {
  using T = TypeParam;
  const Shape shape{5, 1003};
  const auto gate = randoms<T>(shape, 1, 2.0);
  const auto up = randoms<T>(shape, 2);
  const auto dy = randoms<T>(shape, 3);
  Context one(1);
  Context three(3);
  for (const auto& [function, name] : enum_table<Gate>()) {
    Tensor<T> dgate(shape);
    Tensor<T> dup(shape);
    gated_backward(one, function, gate.view(), up.view(), dy.view(), dgate.view(), dup.view());
    for (const bool over_up : {false, true}) {
      auto in_place = randoms<T>(shape, 3);
      Tensor<T> other(shape, 1);
      auto& to_gate = over_up ? other : in_place;
      auto& to_up = over_up ? in_place : other;
      gated_backward(three, function, gate.view(), up.view(), in_place.view(), to_gate.view(),
                     to_up.view());
      EXPECT_TRUE(dgate.values() == to_gate.values()) << name;
      EXPECT_TRUE(dup.values() == to_up.values()) << name;
    }
  }
}

TEST(Gated, RefusesOtherShapes) {
  Context context(1);
  Tensor<float> gate({2, 3});
  Tensor<float> up({3, 2});
  EXPECT_THROW(gated_forward(context, Gate::kSilu, gate.view(), up.view(), gate.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::gated_test
