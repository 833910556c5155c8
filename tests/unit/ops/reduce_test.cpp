#include "strata/ops/reduce.hpp"

#include "tensors.hpp"

namespace strata::ops::reduce_test {
namespace {

using namespace test;

template <typename T>
class ReduceTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ReduceTyped, Types);

TYPED_TEST(ReduceTyped, FoldDoesItsAdditionsInOrder) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 70001;
  // The additions of eight leaves, and a part that is used twice.
  const std::vector<ReductionStep> steps{{0, 1}, {2, 3}, {0, 2}, {4, 5},
                                         {6, 7}, {4, 6}, {0, 4}, {0, 3}};
  std::vector<Tensor<T>> expected;
  for (std::uint64_t part = 0; part < 8; ++part) {
    expected.push_back(randoms<T>({kCount}, part));
  }
  for (const ReductionStep& step : steps) {
    for (std::int64_t i = 0; i < kCount; ++i) {
      expected[static_cast<std::size_t>(step.into)][i] +=
          expected[static_cast<std::size_t>(step.from)][i];
    }
  }
  for (const int threads : {1, 2, 4}) {
    for (const std::size_t misalignment : {0, 1}) {
      Context context(threads);
      std::vector<Tensor<T>> parts;
      std::vector<TensorView> views;
      for (std::uint64_t part = 0; part < 8; ++part) {
        parts.push_back(randoms<T>({kCount}, part, 1.0, misalignment));
        views.push_back(parts.back().view());
      }
      fold(context, views, steps);
      for (std::size_t part = 0; part < 8; ++part) {
        ASSERT_TRUE(expected[part].values() == parts[part].values()) << "part " << part;
      }
    }
  }
}

TEST(Fold, OfASliceIsTheSliceOfTheFold) {
  Context context(1);
  constexpr std::int64_t kCount = 20000;
  auto a = randoms<float>({kCount}, 1);
  auto b = randoms<float>({kCount}, 2);
  auto c = randoms<float>({kCount}, 3);
  auto whole_a = randoms<float>({kCount}, 1);
  auto whole_c = randoms<float>({kCount}, 3);
  const std::vector<ReductionStep> steps{{0, 1}, {2, 0}};
  fold(context, std::vector<TensorView>{whole_a.view(), b.view(), whole_c.view()}, steps);
  for (const auto& [begin, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 777}, {777, 9000}, {9777, kCount - 9777}}) {
    const auto part = [&, begin = begin, count = count](Tensor<float>& tensor) {
      return tensor.view().flat_slice(begin, count);
    };
    fold(context, std::vector<TensorView>{part(a), part(b), part(c)}, steps);
  }
  EXPECT_TRUE(whole_a.values() == a.values());
  EXPECT_TRUE(whole_c.values() == c.values());
}

TEST(Fold, AddsBfloat16InFloat32) {
  constexpr std::int64_t kCount = 70001;
  const std::vector<ReductionStep> steps{{1, 0}, {2, 3}, {1, 2}, {4, 1}};
  std::vector<Tensor<BFloat16>> parts;
  std::vector<Tensor<float>> expected;
  for (std::uint64_t part = 0; part < 5; ++part) {
    parts.push_back(randoms<BFloat16>({kCount}, part));
    expected.emplace_back(Shape{kCount});
    for (std::int64_t i = 0; i < kCount; ++i) {
      expected.back()[i] = static_cast<float>(parts.back()[i]);
    }
  }
  for (const ReductionStep& step : steps) {
    for (std::int64_t i = 0; i < kCount; ++i) {
      expected[static_cast<std::size_t>(step.into)][i] +=
          expected[static_cast<std::size_t>(step.from)][i];
    }
  }
  std::vector<TensorView> views;
  for (Tensor<BFloat16>& part : parts) {
    views.push_back(part.view());
  }
  for (const int threads : {1, 3}) {
    Context context(threads);
    Tensor<float> sum(Shape{kCount});
    fold_into(context, views, steps, sum.view());
    EXPECT_TRUE(sum.values() == expected[4].values());
  }
}

TEST(Fold, RefusesPartsThatAreNotThere) {
  Context context(1);
  auto a = randoms<float>({4}, 1);
  auto b = randoms<float>({5}, 1);
  const std::vector<ReductionStep> one{{0, 1}};
  EXPECT_THROW(fold(context, std::vector<TensorView>{a.view()}, one), std::logic_error);
  EXPECT_THROW(fold(context, std::vector<TensorView>{a.view(), b.view()}, one), std::logic_error);
}

TYPED_TEST(ReduceTyped, SumOfSquaresByBlock) {
  using T = TypeParam;
  for (const std::int64_t count : {1, 100, 5000, 12345}) {
    const auto x = randoms<T>({count}, 1);
    constexpr std::int64_t kBlock = 1000;
    const std::int64_t blocks = (count + kBlock - 1) / kBlock;
    std::vector<double> first;
    for (const int threads : {1, 2, 4}) {
      for (const std::size_t misalignment : {0, 3}) {
        Context context(threads);
        const auto moved = randoms<T>({count}, 1, 1.0, misalignment);
        Tensor<double> sums({blocks});
        sum_of_squares_blocks(context, moved.view(), kBlock, sums.view());
        first = first.empty() ? sums.values() : first;
        EXPECT_EQ(first, sums.values());
      }
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      long double expected = 0.0L;
      for (std::int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
        expected += static_cast<long double>(x[i]) * static_cast<long double>(x[i]);
      }
      EXPECT_NEAR(first[static_cast<std::size_t>(block)], static_cast<double>(expected),
                  1e-14 * static_cast<double>(expected));
    }
  }
}

TYPED_TEST(ReduceTyped, ABlocksSumDoesNotDependOnWhatIsAroundIt) {
  using T = TypeParam;
  Context context(1);
  const auto x = randoms<T>({4096 * 3}, 1);
  Tensor<double> together({3});
  sum_of_squares_blocks(context, x.view(), 4096, together.view());
  for (std::int64_t block = 0; block < 3; ++block) {
    Tensor<double> alone({1});
    sum_of_squares_blocks(context, x.view().flat_slice(block * 4096, 4096), 4096, alone.view());
    EXPECT_EQ(alone[0], together[block]);
  }
}

TYPED_TEST(ReduceTyped, SumsOfSquaresAreDoublesOneABlock) {
  using T = TypeParam;
  Context context(1);
  const auto x = randoms<T>({100}, 1);
  Tensor<double> few({2});
  Tensor<std::int64_t> whole({4});
  EXPECT_THROW(sum_of_squares_blocks(context, x.view(), 30, few.view()), std::logic_error);
  EXPECT_THROW(sum_of_squares_blocks(context, x.view(), 30, whole.view()), std::logic_error);
  Tensor<double> none({0});
  sum_of_squares_blocks(context, x.view().flat_slice(0, 0), 30, none.view());
}

}  // namespace
}  // namespace strata::ops::reduce_test
