#include "strata/ops/dropout.hpp"

#include <utility>

#include "tensors.hpp"

namespace strata::ops::dropout_test {
namespace {

using namespace test;

const RandomStream kStream(42, RandomPurpose::kDropout, 7);

TEST(Dropout, KeepsByTheSamplesWords) {
  Context context(1);
  const Shape shape{3, 1, 1501};
  auto x = randoms<float>(shape, 1);
  Tensor<float> y(shape);
  Tensor<std::uint8_t> mask(shape);
  constexpr double kProbability = 0.25;
  dropout_forward(context, x.view(), kProbability, kStream, {1000}, y.view(), mask.view());
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t e = 0; e < 1501; ++e) {
      const auto words =
          kStream.words(static_cast<std::uint64_t>(e / 4), static_cast<std::uint64_t>(1000 + row));
      const bool kept = words[static_cast<std::size_t>(e % 4)] >= 0x40000000U;
      const std::int64_t i = row * 1501 + e;
      ASSERT_EQ(mask[i], kept ? 1 : 0);
      ASSERT_EQ(y[i], kept ? x[i] * static_cast<float>(1.0 / 0.75) : 0.0F);
    }
  }
}

TEST(Dropout, BelongsToTheSampleAndNotToItsMicrobatchOrThread) {
  const Shape shape{64, 700};
  const auto x = randoms<double>(shape, 1);
  Tensor<double> whole(shape);
  Tensor<std::uint8_t> whole_mask(shape);
  Context one(1);
  dropout_forward(one, x.view(), 0.5, kStream, {0}, whole.view(), whole_mask.view());
  Context four(4);
  Tensor<double> parts(shape, 3);
  Tensor<std::uint8_t> parts_mask(shape, 5);
  const Shape half{32, 700};
  for (const std::int64_t first_row : {0, 32}) {
    const auto part = [&](const auto& view) {
      return view.flat_slice(first_row * 700, 32 * 700).reshaped(half);
    };
    dropout_forward(four, part(x.view()), 0.5, kStream, {first_row}, part(parts.view()),
                    part(parts_mask.view()));
  }
  EXPECT_TRUE(whole.values() == parts.values());
  EXPECT_TRUE(whole_mask.values() == parts_mask.values());
}

TEST(Dropout, ASliceOfColumnsKeepsWhatTheWholeKeeps) {
  constexpr std::int64_t kColumns = 2501;
  // Two samples of three tokens each.
  const Shape shape{2, 3, kColumns};
  const auto x = randoms<float>(shape, 1);
  Tensor<float> whole(shape);
  Tensor<std::uint8_t> whole_mask(shape);
  Context context(3);
  dropout_forward(context, x.view(), 0.4, kStream, {11}, whole.view(), whole_mask.view());
  for (const auto& [first, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 1030}, {1031, 3}, {1034, 1467}}) {
    const Shape part_shape{2, 3, count};
    Tensor<float> part(part_shape);
    Tensor<std::uint8_t> mask(part_shape);
    for (std::int64_t i = 0; i < part_shape.count(); ++i) {
      part[i] = x[i / count * kColumns + first + i % count];
    }
    dropout_forward(context, part.view(), 0.4, kStream, {11}, part.view(), mask.view(),
                    {first, kColumns});
    for (std::int64_t i = 0; i < part_shape.count(); ++i) {
      const std::int64_t at = i / count * kColumns + first + i % count;
      ASSERT_EQ(mask[i], whole_mask[at]) << "columns from " << first << ", element " << i;
      ASSERT_EQ(part[i], whole[at]);
    }
  }
}

TEST(Dropout, RefusesColumnsBeyondTheWhole) {
  Context context(1);
  Tensor<float> x({2, 4});
  Tensor<std::uint8_t> mask({2, 4});
  EXPECT_THROW(dropout_forward(context, x.view(), 0.5, kStream, {0}, x.view(), mask.view(), {5, 8}),
               std::logic_error);
  EXPECT_NO_THROW(
      dropout_forward(context, x.view(), 0.5, kStream, {0}, x.view(), mask.view(), {4, 8}));
}

TEST(Dropout, KeepsTheMeanAndTheShare) {
  Context context(1);
  const Shape shape{100, 1000};
  Tensor<float> x(shape);
  std::fill(x.elements().begin(), x.elements().end(), 1.0F);
  Tensor<std::uint8_t> mask(shape);
  dropout_forward(context, x.view(), 0.2, kStream, {0}, x.view(), mask.view());
  double kept = 0.0;
  for (const std::uint8_t one : mask.elements()) {
    kept += one;
  }
  // Five standard deviations of 100,000 draws.
  EXPECT_NEAR(kept / 1e5, 0.8, 5.0 * std::sqrt(0.8 * 0.2 / 1e5));
}

TEST(Dropout, ProbabilityZeroCopies) {
  Context context(1);
  const Shape shape{2, 50};
  const auto x = randoms<float>(shape, 1);
  Tensor<float> y(shape);
  Tensor<float> dx(shape);
  Tensor<std::uint8_t> mask(shape);
  dropout_forward(context, x.view(), 0.0, kStream, {0}, y.view(), mask.view());
  EXPECT_TRUE(x.values() == y.values());
  dropout_backward(context, x.view(), mask.view(), 0.0, dx.view());
  EXPECT_TRUE(x.values() == dx.values());
}

TEST(Dropout, BackwardScalesWhatWasKept) {
  Context context(2);
  const Shape shape{40, 1003};
  const auto dy = randoms<float>(shape, 1);
  Tensor<float> y(shape);
  Tensor<float> dx(shape, 1);
  Tensor<std::uint8_t> mask(shape);
  dropout_forward(context, dy.view(), 0.3, kStream, {9}, y.view(), mask.view());
  dropout_backward(context, dy.view(), mask.view(), 0.3, dx.view());
  // The operation is linear, and its own transpose.
  EXPECT_TRUE(y.values() == dx.values());
}

TEST(Dropout, RefusesAProbabilityOfOne) {
  Context context(1);
  Tensor<float> x({1, 4});
  Tensor<std::uint8_t> mask({1, 4});
  EXPECT_THROW(dropout_forward(context, x.view(), 1.0, kStream, {0}, x.view(), mask.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::dropout_test
