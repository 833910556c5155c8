#include "products.hpp"

namespace strata::ops::matmul_fused_test {
namespace {

using namespace test;

template <typename T, typename C>
struct Dtypes {
  using Operand = T;
  using Result = C;
};

/// Products together with what goes before and behind them, of extents with and without tiles.
template <typename Pair>
class MatmulFused : public testing::Test {
 protected:
  using T = typename Pair::Operand;
  using C = typename Pair::Result;

  /// A tensor like c; always the same numbers.
  static Tensor<C> other(Operands<T, C>& operands) {
    return randoms<C>(operands.c.view().shape(), 9);
  }

  /// Calls check(operands, options) for each size, with and without a bias.
  template <typename Check>
  static void for_each_product(const Check& check) {
    for (const ProductSize& size : {ProductSize{5, 7, 3}, ProductSize{33, 65, 17},
                                    ProductSize{300, 1100, 20}, ProductSize{3, 5, 8200}}) {
      for (const Transpose transpose_b : test::kTransposes) {
        SCOPED_TRACE(testing::Message() << size);
        Operands<T, C> operands(size, Transpose::kNo, transpose_b);
        for (const ConstTensorView& bias :
             {ConstTensorView(), ConstTensorView(operands.bias.view())}) {
          check(operands, MatmulOptions{.transpose_b = transpose_b, .bias = bias});
        }
      }
    }
  }

  static void multiply(Operands<T, C>& operands, const TensorView& c,
                       const MatmulOptions& options) {
    Context context(1);
    matmul(context, operands.a.view(), operands.b.view(), c, options);
  }
};
using Pairs = testing::Types<Dtypes<float, float>, Dtypes<double, double>, Dtypes<BFloat16, float>,
                             Dtypes<BFloat16, BFloat16>>;
TYPED_TEST_SUITE(MatmulFused, Pairs);

TYPED_TEST(MatmulFused, AnAddendIsWhatAProductIsAddedTo) {
  TestFixture::for_each_product([](auto& operands, MatmulOptions options) {
    auto expected = TestFixture::other(operands);
    options.accumulate = Accumulate::kAdd;
    TestFixture::multiply(operands, expected.view(), options);
    options.accumulate = Accumulate::kOverwrite;
    auto other = TestFixture::other(operands);
    options.addend = other.view();
    TestFixture::multiply(operands, operands.c.view(), options);
    EXPECT_TRUE(expected.values() == operands.c.values());
    // In its own place.
    TestFixture::multiply(operands, other.view(), options);
    EXPECT_TRUE(expected.values() == other.values());
  });
}

TYPED_TEST(MatmulFused, GeluIsThatOfTheProductThatIsKept) {
  TestFixture::for_each_product([](auto& operands, MatmulOptions options) {
    Context context(1);
    auto product = TestFixture::other(operands);
    TestFixture::multiply(operands, product.view(), options);
    auto expected = TestFixture::other(operands);
    activation_forward(context, Activation::kGelu, product.view(), expected.view());
    auto other = TestFixture::other(operands);
    options.activation = Activation::kGelu;
    options.pre_activation = other.view();
    TestFixture::multiply(operands, operands.c.view(), options);
    EXPECT_TRUE(product.values() == other.values());
    EXPECT_TRUE(expected.values() == operands.c.values());
  });
}

TYPED_TEST(MatmulFused, GelusGradientIsThatOfTheProduct) {
  TestFixture::for_each_product([](auto& operands, MatmulOptions options) {
    Context context(1);
    options.bias = {};
    const auto other = TestFixture::other(operands);
    auto expected = TestFixture::other(operands);
    TestFixture::multiply(operands, expected.view(), options);
    activation_backward(context, Activation::kGelu, other.view(), {}, expected.view(),
                        expected.view());
    options.gelu_gradient_of = other.view();
    TestFixture::multiply(operands, operands.c.view(), options);
    EXPECT_TRUE(expected.values() == operands.c.values());
  });
}

TEST(MatmulFusedErrors, ChecksWhatIsAskedForTogether) {
  Context context(1);
  Operands<float, float> o({3, 6, 4}, Transpose::kNo, Transpose::kNo);
  Tensor<float> other({3, 6});
  Tensor<float> small({3, 5});
  Tensor<double> wide({3, 6});
  const auto refused = [&](const MatmulOptions& options) {
    EXPECT_THROW(matmul(context, o.a.view(), o.b.view(), o.c.view(), options), std::logic_error);
  };
  refused({.addend = small.view()});
  refused({.addend = wide.view()});
  refused({.accumulate = Accumulate::kAdd, .addend = other.view()});
  refused({.activation = Activation::kRelu, .addend = other.view()});
  refused({.activation = Activation::kGelu});
  refused({.activation = Activation::kGelu, .pre_activation = small.view()});
  refused({.activation = Activation::kGelu, .pre_activation = o.c.view()});
  refused({.activation = Activation::kRelu, .pre_activation = other.view()});
  refused({.accumulate = Accumulate::kAdd,
           .activation = Activation::kGelu,
           .pre_activation = other.view()});
  refused({.gelu_gradient_of = wide.view()});
  refused({.gelu_gradient_of = o.c.view()});
  refused({.bias = o.bias.view(), .gelu_gradient_of = other.view()});
  refused({.accumulate = Accumulate::kAdd, .gelu_gradient_of = other.view()});
  refused({.addend = other.view(), .gelu_gradient_of = other.view()});
  refused({.activation = Activation::kRelu, .gelu_gradient_of = other.view()});
}

}  // namespace
}  // namespace strata::ops::matmul_fused_test
