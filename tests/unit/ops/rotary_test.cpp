#include "strata/ops/attention.hpp"

#include "tensors.hpp"

namespace strata::ops::rotary_test {
namespace {

using namespace test;

constexpr double kTheta = 10000.0;
constexpr RotaryAngles kAngles{.theta = kTheta};

template <typename T>
constexpr double kNear = sizeof(T) == 2   ? 4e-3
                         : sizeof(T) == 4 ? 1e-7
                                          : 1e-15;

template <typename T>
class RotaryTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(RotaryTyped, Types);

/// The published formula in terms of wavelengths.
double frequency_of(const RotaryScaling& scaling, double frequency) {
  if (scaling.kind == RotaryScalingKind::kNone) {
    return frequency;
  }
  const double wavelength = 2.0 * std::acos(-1.0) / frequency;
  if (scaling.kind == RotaryScalingKind::kLinear || wavelength > scaling.context / scaling.low) {
    return frequency / scaling.factor;
  }
  if (wavelength < scaling.context / scaling.high) {
    return frequency;
  }
  const double smooth = (scaling.context / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// qkv turned by the formula, in double.
template <typename T>
std::vector<double> turned(const AttentionShape& shape, const RotaryScaling& scaling,
                           const Tensor<T>& qkv, std::int64_t offset) {
  std::vector<double> result;
  const std::int64_t half = shape.head_size / 2;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    for (std::int64_t c = 0; c < shape.qkv_width(); ++c) {
      const std::int64_t at = row * shape.qkv_width() + c;
      const std::int64_t index = c / shape.head_size % (shape.queries + 2);
      const std::int64_t i = c % shape.head_size;
      const double value = as_double(qkv[at]);
      if (index == shape.queries + 1) {
        result.push_back(value);
        continue;
      }
      const double angle =
          static_cast<double>(offset + row % shape.tokens) *
          frequency_of(scaling, std::pow(kTheta, -2.0 * static_cast<double>(i % half) /
                                                     static_cast<double>(shape.head_size)));
      const double other = as_double(qkv[i < half ? at + half : at - half]);
      result.push_back(value * std::cos(angle) + (i < half ? -other : other) * std::sin(angle));
    }
  }
  return result;
}

TYPED_TEST(RotaryTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  for (const AttentionShape& shape :
       {AttentionShape{2, 5, 2, 1, 2}, AttentionShape{1, 300, 1, 3, 10},
        AttentionShape{3, 33, 2, 2, 64}, AttentionShape{1, 1, 1, 1, 32}}) {
    for (const RotaryScaling& scaling :
         {RotaryScaling{}, RotaryScaling{.kind = RotaryScalingKind::kLinear, .factor = 2.5},
          RotaryScaling{RotaryScalingKind::kLlama3, 8.0, 1.0, 4.0, 100.0}}) {
      const std::int64_t offset = 1000;
      auto qkv = randoms<T>({shape.rows(), shape.qkv_width()}, 1);
      const std::vector<double> expected = turned(shape, scaling, qkv, offset);
      rotary(context, shape, {kTheta, scaling}, offset, Rotation::kForward, qkv.view());
      EXPECT_LT((relative_error<T, double>(qkv.elements(), expected)), kNear<T>);
    }
  }
}

TYPED_TEST(RotaryTyped, BackwardTurnsBack) {
  using T = TypeParam;
  Context context(1);
  const AttentionShape shape{2, 70, 2, 2, 24};
  const auto before = randoms<T>({shape.rows(), shape.qkv_width()}, 1);
  auto qkv = randoms<T>({shape.rows(), shape.qkv_width()}, 1);
  rotary(context, shape, kAngles, 7, Rotation::kForward, qkv.view());
  EXPECT_GT((relative_error<T, T>(qkv.elements(), before.elements())), 0.5);
  rotary(context, shape, kAngles, 7, Rotation::kBackward, qkv.view());
  EXPECT_LT((relative_error<T, T>(qkv.elements(), before.elements())), 2.0 * kNear<T>);
}

TYPED_TEST(RotaryTyped, BitsDependOnNeitherThreadsNorWhereACallBegins) {
  using T = TypeParam;
  const AttentionShape shape{1, 500, 3, 2, 30};
  auto first = randoms<T>({shape.rows(), shape.qkv_width()}, 1);
  Context single(1);
  rotary(single, shape, kAngles, 0, Rotation::kForward, first.view());
  Context several(3);
  auto threaded = randoms<T>({shape.rows(), shape.qkv_width()}, 1, 1.0, 3);
  rotary(several, shape, kAngles, 0, Rotation::kForward, threaded.view());
  EXPECT_TRUE(first.values() == threaded.values());
  auto pieces = randoms<T>({shape.rows(), shape.qkv_width()}, 1);
  std::int64_t begin = 0;
  for (const std::int64_t tokens : {1, 100, 399}) {
    AttentionShape piece = shape;
    piece.tokens = tokens;
    rotary(single, piece, kAngles, begin, Rotation::kForward,
           pieces.view()
               .flat_slice(begin * shape.qkv_width(), tokens * shape.qkv_width())
               .reshaped({tokens, shape.qkv_width()}));
    begin += tokens;
  }
  EXPECT_TRUE(first.values() == pieces.values());
}

TEST(Rotary, RefusesHeadsOfOddSize) {
  Context context(1);
  const AttentionShape shape{1, 2, 1, 1, 5};
  auto qkv = randoms<float>({shape.rows(), shape.qkv_width()}, 1);
  EXPECT_THROW(rotary(context, shape, kAngles, 0, Rotation::kForward, qkv.view()),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::rotary_test
