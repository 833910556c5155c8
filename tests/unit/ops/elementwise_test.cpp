#include "strata/ops/elementwise.hpp"

#include "tensors.hpp"

namespace strata::ops {
namespace {

using test::randoms;
using test::Tensor;

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
    scale(context, 0.1, y.view());
    for (std::int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(y[i], (before[i] + x[i]) * static_cast<T>(0.1));
    }
    copy(context, x.view(), y.view());
    EXPECT_TRUE(x.values() == y.values());
    fill_zero(context, y.view());
    EXPECT_TRUE(y.values() == std::vector<T>(kCount, T{0}));
  }
}

TEST(Elementwise, RefusesUnequalCounts) {
  Context context(1);
  const Tensor<float> x({4});
  Tensor<float> y({5});
  EXPECT_THROW(add(context, x.view(), y.view()), std::logic_error);
  EXPECT_THROW(copy(context, x.view(), y.view()), std::logic_error);
}

}  // namespace
}  // namespace strata::ops
