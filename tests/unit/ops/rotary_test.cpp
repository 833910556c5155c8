#include <algorithm>
#include <cmath>
#include <utility>

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

/// What longrope divides a pair's frequency by in these tests.
double factor_of(std::int64_t pair) {
  return 1.0 + 0.5 * static_cast<double>(pair);
}

/// longrope of so many pairs.
RotaryScaling longrope_of(std::int64_t pairs, double attention_factor = 0.0) {
  RotaryScaling scaling{RotaryScalingKind::kLongrope, 32.0, 1.0, 4.0, 4096.0, attention_factor};
  scaling.factors.count = pairs;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    scaling.factors.values[static_cast<std::size_t>(pair)] = factor_of(pair);
  }
  return scaling;
}

/// The published formulas: llama3's in terms of wavelengths, yarn's of the pairs between those of
/// `high` and `low` turns.
double frequency_of(const RotaryScaling& scaling, double pair, double elements) {
  const double frequency = std::pow(kTheta, -2.0 * pair / elements);
  if (scaling.kind == RotaryScalingKind::kYarn) {
    const auto bound = [&](double turns) {
      return elements * std::log(scaling.context / (turns * 2.0 * std::acos(-1.0))) /
             (2.0 * std::log(kTheta));
    };
    const double from = std::max(0.0, std::floor(bound(scaling.high)));
    double to = std::min(elements - 1.0, std::ceil(bound(scaling.low)));
    to += to == from ? 0.001 : 0.0;
    const double kept = 1.0 - std::clamp((pair - from) / (to - from), 0.0, 1.0);
    return frequency / scaling.factor * (1.0 - kept) + frequency * kept;
  }
  if (scaling.kind == RotaryScalingKind::kNone) {
    return frequency;
  }
  if (scaling.kind == RotaryScalingKind::kLongrope) {
    return frequency / factor_of(static_cast<std::int64_t>(pair));
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
std::vector<double> turned(const AttentionShape& shape, const RotaryAngles& angles,
                           const Tensor<T>& qkv, std::int64_t offset) {
  std::vector<double> result;
  const auto rotated =
      static_cast<std::int64_t>(angles.share * static_cast<double>(shape.head_size));
  const std::int64_t half = rotated / 2;
  const double magnitude = angles.scaling.attention_factor > 0.0 ? angles.scaling.attention_factor
                           : angles.scaling.kind == RotaryScalingKind::kYarn
                               ? 1.0 + 0.1 * std::log(angles.scaling.factor)
                           : angles.scaling.kind == RotaryScalingKind::kLongrope
                               ? std::sqrt(1.0 + 5.0 / 12.0)
                               : 1.0;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    for (std::int64_t c = 0; c < shape.qkv_width(); ++c) {
      const std::int64_t at = row * shape.qkv_width() + c;
      const std::int64_t index = c / shape.head_size % (shape.queries + 2);
      const std::int64_t i = c % shape.head_size;
      const double value = as_double(qkv[at]);
      if (index == shape.queries + 1 || i >= rotated) {
        result.push_back(value);
        continue;
      }
      const double angle =
          static_cast<double>(offset + row % shape.tokens) *
          frequency_of(angles.scaling, static_cast<double>(i % half), static_cast<double>(rotated));
      const double other = as_double(qkv[i < half ? at + half : at - half]);
      result.push_back(magnitude *
                       (value * std::cos(angle) + (i < half ? -other : other) * std::sin(angle)));
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
          RotaryScaling{RotaryScalingKind::kLlama3, 8.0, 1.0, 4.0, 100.0},
          RotaryScaling{RotaryScalingKind::kYarn, 4.0, 1.0, 32.0, 4096.0},
          RotaryScaling{RotaryScalingKind::kYarn, 8.0, 2.0, 3.0, 64.0, 0.75},
          RotaryScaling{RotaryScalingKind::kLongrope}}) {
      for (const double share : {1.0, 0.5}) {
        RotaryAngles angles{kTheta, scaling, share};
        if (scaling.kind == RotaryScalingKind::kLongrope) {
          angles.scaling =
              longrope_of(angles.rotated(shape.head_size) / 2, share == 1.0 ? 0.0 : 0.75);
        }
        if (angles.rotated(shape.head_size) % 2 != 0) {
          continue;
        }
        const std::int64_t offset = 1000;
        auto qkv = randoms<T>({shape.rows(), shape.qkv_width()}, 1);
        const std::vector<double> expected = turned(shape, angles, qkv, offset);
        rotary(context, shape, angles, offset, Rotation::kForward, qkv.view());
        EXPECT_LT((relative_error<T, double>(qkv.elements(), expected)), kNear<T>)
            << name_of(scaling.kind) << " " << share;
      }
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

TEST(Rotary, RefusesAnOddNumberOfElementsAndNone) {
  Context context(1);
  for (const auto& [head_size, share] :
       {std::pair{5, 1.0}, std::pair{12, 0.25}, std::pair{4, 0.2}, std::pair{4, 1.5}}) {
    const AttentionShape shape{1, 2, 1, 1, head_size};
    auto qkv = randoms<float>({shape.rows(), shape.qkv_width()}, 1);
    EXPECT_THROW(rotary(context, shape, {.share = share}, 0, Rotation::kForward, qkv.view()),
                 std::logic_error)
        << head_size << " " << share;
  }
}

TEST(Rotary, LongropeTakesItsFactorsByTheTokensOfASample) {
  RotaryScaling scaling = longrope_of(2);
  scaling.long_factors = longrope_of(3).factors;
  EXPECT_EQ(scaling.in_samples_of(4096.0), scaling);
  EXPECT_EQ(scaling.in_samples_of(4097.0).factors, scaling.long_factors);
  scaling.factor = 1.0;
  EXPECT_EQ(scaling.magnitude(), 1.0);
  Context context(1);
  auto qkv = randoms<float>({2, 3 * 8}, 1);
  EXPECT_THROW(
      rotary(context, {1, 2, 1, 1, 8}, {.scaling = scaling}, 0, Rotation::kForward, qkv.view()),
      std::logic_error);
}

/// backward is the transpose of forward: dy . forward(x) = backward(dy) . x.
TEST(Rotary, BackwardIsTheGradientWithAMagnitude) {
  Context context(1);
  const AttentionShape shape{2, 30, 1, 2, 24};
  const RotaryAngles angles{.scaling = {RotaryScalingKind::kYarn, 4.0, 1.0, 32.0, 128.0},
                            .share = 0.5};
  const Shape wide{shape.rows(), shape.qkv_width()};
  const auto x = randoms<double>(wide, 1);
  auto y = randoms<double>(wide, 1);
  const auto dy = randoms<double>(wide, 2);
  auto dx = randoms<double>(wide, 2);
  rotary(context, shape, angles, 3, Rotation::kForward, y.view());
  rotary(context, shape, angles, 3, Rotation::kBackward, dx.view());
  EXPECT_NEAR(dot(dy, y) / dot(dx, x), 1.0, 1e-12);
}

}  // namespace
}  // namespace strata::ops::rotary_test
