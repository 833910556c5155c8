#include "strata/ops/loss.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "strata/core/error.hpp"

#include "loss_sums.hpp"
#include "tensors.hpp"

namespace strata::ops::loss_test {
namespace {

using namespace test;

Tensor<std::int64_t> labels_of(std::int64_t rows, std::int64_t classes) {
  Tensor<std::int64_t> labels({rows});
  for (std::int64_t row = 0; row < rows; ++row) {
    labels[row] = (row * 7 + 3) % classes;
  }
  return labels;
}

template <typename T>
class LossTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LossTyped, Types);

TYPED_TEST(LossTyped, CrossEntropyAgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  for (const std::int64_t classes : {1, 2, 10, 1000, 5000}) {
    const auto logits = randoms<T>({9, classes}, 1, 3.0);
    const auto labels = labels_of(9, classes);
    double loss = 0.0;
    std::int64_t correct = 0;
    std::vector<double> gradient;
    for (std::int64_t row = 0; row < 9; ++row) {
      double sum = 0.0;
      std::int64_t largest = 0;
      for (std::int64_t i = 0; i < classes; ++i) {
        sum += std::exp(static_cast<double>(logits[row * classes + i]));
        largest = logits[row * classes + i] > logits[row * classes + largest] ? i : largest;
      }
      for (std::int64_t i = 0; i < classes; ++i) {
        gradient.push_back(0.25 * (std::exp(static_cast<double>(logits[row * classes + i])) / sum -
                                   (i == labels[row] ? 1.0 : 0.0)));
      }
      loss += std::log(sum) - static_cast<double>(logits[row * classes + labels[row]]);
      correct += largest == labels[row] ? 1 : 0;
    }
    Tensor<T> dlogits({9, classes});
    const LossSums sums =
        cross_entropy_sums(context, logits.view(), labels.view(), 9, 0.25, dlogits.view());
    EXPECT_NEAR(sums.loss, loss, (sizeof(T) == 4 ? 1e-6 : 1e-13) * (loss + 1.0)) << classes;
    EXPECT_EQ(sums.correct, correct);
    for (std::int64_t i = 0; i < 9 * classes; ++i) {
      ASSERT_NEAR(static_cast<double>(dlogits[i]), gradient[static_cast<std::size_t>(i)],
                  sizeof(T) == 4 ? 1e-7 : 1e-15);
    }
    // Without a gradient, and over the logits themselves, the loss has the same bits.
    EXPECT_EQ(cross_entropy_sums(context, logits.view(), labels.view(), 9, 0.25, {}).loss,
              sums.loss);
    auto in_place = randoms<T>({9, classes}, 1, 3.0);
    EXPECT_EQ(
        cross_entropy_sums(context, in_place.view(), labels.view(), 9, 0.25, in_place.view()).loss,
        sums.loss);
    EXPECT_TRUE(in_place.values() == dlogits.values());
  }
}

TEST(CrossEntropy, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  auto logits = randoms<double>({4, 11}, 1);
  const auto labels = labels_of(4, 11);
  Tensor<double> dlogits({4, 11});
  static_cast<void>(
      cross_entropy_sums(context, logits.view(), labels.view(), 3, 0.5, dlogits.view()));
  expect_gradient(
      [&] {
        return 0.5 * cross_entropy_sums(context, logits.view(), labels.view(), 3, 0.5, {}).loss;
      },
      logits.elements(), dlogits.values());
}

TEST(CrossEntropy, RowsBeyondTheValidOnesCountForNothing) {
  Context context(1);
  const auto logits = randoms<float>({5, 10}, 1);
  auto labels = labels_of(5, 10);
  auto dlogits = randoms<float>({5, 10}, 2);
  const double of_three =
      cross_entropy_sums(context, logits.view().flat_slice(0, 30).reshaped({3, 10}),
                         labels.view().flat_slice(0, 3), 3, 1.0, {})
          .loss;
  labels[3] = -1;
  labels[4] = 99;
  EXPECT_EQ(cross_entropy_sums(context, logits.view(), labels.view(), 3, 1.0, dlogits.view()).loss,
            of_three);
  for (std::int64_t i = 30; i < 50; ++i) {
    EXPECT_EQ(dlogits[i], 0.0F);
  }
}

TEST(CrossEntropy, NamesTheRowAndTargetThatIsOutOfRange) {
  Context context(1);
  const auto logits = randoms<float>({5, 10}, 1);
  auto labels = labels_of(5, 10);
  for (const std::int64_t wrong : {10, -2}) {
    labels[2] = wrong;
    labels[4] = -7;
    const LossSums sums = cross_entropy_sums(context, logits.view(), labels.view(), 5, 1.0, {});
    EXPECT_EQ(sums.bad_row, 2);
    EXPECT_EQ(sums.bad_label, wrong);
    try {
      require_labels(sums, 10);
      FAIL() << "a target of " << wrong << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_THAT(error.what(), testing::HasSubstr("row 2"));
      EXPECT_THAT(error.what(), testing::HasSubstr("target " + std::to_string(wrong)));
      EXPECT_THAT(error.what(), testing::HasSubstr("0 to 9"));
    }
  }
}

TEST(CrossEntropy, RowsOfBadLabelsGiveNeitherLossNorGradient) {
  Context context(1);
  const auto logits = randoms<float>({5, 10}, 1);
  auto labels = labels_of(5, 10);
  const LossSums all = cross_entropy_sums(context, logits.view(), labels.view(), 5, 1.0, {});
  EXPECT_EQ(all.bad_row, -1);
  EXPECT_NO_THROW(require_labels(all, 10));
  const LossSums alone =
      cross_entropy_sums(context, logits.view().flat_slice(0, 40).reshaped({4, 10}),
                         labels.view().flat_slice(0, 4), 4, 1.0, {});
  for (const std::int64_t bad : {std::numeric_limits<std::int64_t>::max(), std::int64_t{10}}) {
    labels[4] = bad;
    auto dlogits = randoms<float>({5, 10}, 2);
    const LossSums sums =
        cross_entropy_sums(context, logits.view(), labels.view(), 5, 1.0, dlogits.view());
    EXPECT_EQ(sums.loss, alone.loss);
    EXPECT_EQ(sums.correct, alone.correct);
    EXPECT_EQ(sums.bad_label, bad);
    for (std::int64_t i = 40; i < 50; ++i) {
      EXPECT_EQ(dlogits[i], 0.0F);
    }
  }
}

TEST(CrossEntropy, UncountedRowsAreLeftOut) {
  Context context(1);
  const auto logits = randoms<float>({5, 10}, 1);
  auto labels = labels_of(5, 10);
  EXPECT_EQ(cross_entropy_sums(context, logits.view(), labels.view(), 4, 1.0, {}).counted, 4);
  const LossSums first_two = cross_entropy_sums(context, logits.view(), labels.view(), 2, 1.0, {});
  labels[2] = labels[3] = kUncounted;
  auto dlogits = randoms<float>({5, 10}, 2);
  const LossSums sums =
      cross_entropy_sums(context, logits.view(), labels.view(), 4, 1.0, dlogits.view());
  EXPECT_EQ(sums.loss, first_two.loss);
  EXPECT_EQ(sums.correct, first_two.correct);
  EXPECT_EQ(sums.counted, 2);
  EXPECT_NO_THROW(require_labels(sums, 10));
  for (std::int64_t i = 20; i < 50; ++i) {
    EXPECT_EQ(dlogits[i], 0.0F);
  }
  EXPECT_EQ(squared_error_sums(context, logits.view(), logits.view(), 3, 1.0, {}).counted, 3);
}

TEST(CrossEntropy, NoRowsGiveNoLoss) {
  Context context(1);
  const Tensor<float> logits({0, 10});
  const Tensor<std::int64_t> labels({0});
  const LossSums sums = cross_entropy_sums(context, logits.view(), labels.view(), 0, 1.0, {});
  EXPECT_EQ(sums.loss, 0.0);
  EXPECT_EQ(sums.correct, 0);
  EXPECT_EQ(sums.bad_row, -1);
  EXPECT_EQ(squared_error_sums(context, logits.view(), logits.view(), 0, 1.0, {}).loss, 0.0);
}

TEST(CrossEntropy, SumsOfAnotherShapeOrTypeAreRefused) {
  Context context(1);
  const auto logits = randoms<float>({5, 10}, 1);
  const auto labels = labels_of(5, 10);
  Tensor<std::int64_t> few({kLossElements - 1});
  Tensor<double> doubles({kLossElements});
  for (const TensorView& sums : {few.view(), doubles.view()}) {
    EXPECT_THROW(cross_entropy(context, logits.view(), labels.view(), 5, 1.0, {}, sums),
                 std::logic_error);
    EXPECT_THROW(mean_squared_error(context, logits.view(), logits.view(), 5, 1.0, {}, sums),
                 std::logic_error);
    EXPECT_THROW(static_cast<void>(loss_sums_of(sums)), std::logic_error);
  }
}

TEST(CrossEntropy, TheFirstOfEqualLogitsWins) {
  Context context(1);
  Tensor<float> logits({2, 20});
  Tensor<std::int64_t> labels({2});
  labels[1] = 1;
  EXPECT_EQ(cross_entropy_sums(context, logits.view(), labels.view(), 2, 1.0, {}).correct, 1);
}

TEST(CrossEntropy, ANotANumberReachesTheLossAndNothingIsRight) {
  Context context(1);
  for (const std::int64_t at : {0, 5, 19}) {
    Tensor<float> logits({1, 20});
    logits[3] = 1.0F;
    logits[at] = NAN;
    Tensor<std::int64_t> labels({1});
    labels[0] = 3;
    Tensor<float> dlogits({1, 20});
    for (const TensorView& gradient : {TensorView(), dlogits.view()}) {
      const LossSums sums =
          cross_entropy_sums(context, logits.view(), labels.view(), 1, 1.0, gradient);
      EXPECT_TRUE(std::isnan(sums.loss));
      EXPECT_EQ(sums.correct, 0);
    }
  }
}

TYPED_TEST(LossTyped, BitsDependOnNeitherThreadsNorAlignment) {
  using T = TypeParam;
  std::vector<T> first;
  double first_loss = 0.0;
  double first_squares = 0.0;
  const auto labels = labels_of(61, 1003);
  for (const int threads : {1, 2, 4}) {
    Context context(threads);
    for (const std::size_t misalignment : {0, 3}) {
      const auto logits = randoms<T>({61, 1003}, 1, 2.0, misalignment);
      const auto target = randoms<T>({61, 1003}, 2, 2.0, misalignment);
      Tensor<T> gradient({61, 1003}, misalignment);
      const double squares =
          squared_error_sums(context, logits.view(), target.view(), 60, 0.1, gradient.view()).loss;
      const double loss =
          cross_entropy_sums(context, logits.view(), labels.view(), 60, 0.1, gradient.view()).loss;
      if (first.empty()) {
        first = gradient.values();
        first_loss = loss;
        first_squares = squares;
      }
      EXPECT_TRUE(first == gradient.values());
      EXPECT_EQ(first_loss, loss);
      EXPECT_EQ(first_squares, squares);
    }
  }
}

TYPED_TEST(LossTyped, SquaredErrorAgreesWithItsFormula) {
  using T = TypeParam;
  Context context(1);
  const Shape shape{5, 3, 7};
  const auto prediction = randoms<T>(shape, 1);
  const auto target = randoms<T>(shape, 2);
  auto gradient = randoms<T>(shape, 3);
  const auto units = randoms<double>({21}, 4);
  double loss = 0.0;
  double loss_in_units = 0.0;
  std::vector<double> expected(5 * 21, 0.0);
  for (std::int64_t i = 0; i < 4 * 21; ++i) {
    const double difference = static_cast<double>(prediction[i]) - static_cast<double>(target[i]);
    loss += difference * difference / 21.0;
    loss_in_units += std::pow(units[i % 21] * difference, 2) / 21.0;
    expected[static_cast<std::size_t>(i)] = 0.25 * 2.0 * difference / 21.0;
  }
  const LossSums sums =
      squared_error_sums(context, prediction.view(), target.view(), 4, 0.25, gradient.view());
  EXPECT_NEAR(sums.loss, loss, 1e-13 * loss);
  EXPECT_LT((relative_error<T, double>(gradient.elements(), expected)),
            sizeof(T) == 4 ? 3e-7 : 1e-15);
  EXPECT_EQ(gradient[4 * 21], T{0});
  // Units are those of the loss alone.
  auto again = randoms<T>(shape, 3);
  const LossSums in_units = squared_error_sums(context, prediction.view(), target.view(), 4, 0.25,
                                               again.view(), units.view());
  EXPECT_NEAR(in_units.loss, loss_in_units, 1e-13 * loss_in_units);
  EXPECT_EQ(again.values(), gradient.values());
}

TEST(MeanSquaredError, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  auto prediction = randoms<double>({3, 4}, 1);
  const auto target = randoms<double>({3, 4}, 2);
  Tensor<double> gradient({3, 4});
  static_cast<void>(
      squared_error_sums(context, prediction.view(), target.view(), 2, 0.5, gradient.view()));
  expect_gradient(
      [&] {
        return 0.5 * squared_error_sums(context, prediction.view(), target.view(), 2, 0.5, {}).loss;
      },
      prediction.elements(), gradient.values());
}

TEST(CrossEntropy, TellsOfEachSample) {
  Context context(2);
  const std::int64_t tokens = 3;
  Tensor<double> logits({12, 4});
  for (std::int64_t i = 0; i < 48; ++i) {
    logits[i] = static_cast<double>(i * i % 7);
  }
  const std::vector<std::int64_t> labels{0,          kUncounted, 3,          1, 2, 0,
                                         kUncounted, kUncounted, kUncounted, 1, 1, 1};
  Tensor<double> samples({4, kSampleElements});
  std::ranges::fill(samples.elements(), -1.0);
  const std::int64_t valid = 10;
  const LossSums all = sums_of([&](const TensorView& sums) {
    cross_entropy(context, logits.view(), ConstTensorView(std::span(labels), Shape{12}), valid, 1.0,
                  {}, sums, samples.view());
  });
  double loss = 0.0;
  for (std::int64_t sample = 0; sample < 4; ++sample) {
    const std::int64_t rows = std::clamp<std::int64_t>(valid - sample * tokens, 0, tokens);
    const LossSums own = cross_entropy_sums(
        context, logits.view().flat_slice(sample * tokens * 4, tokens * 4).reshaped({tokens, 4}),
        ConstTensorView(std::span(labels), Shape{12}).flat_slice(sample * tokens, tokens), rows,
        1.0, {});
    const auto at = static_cast<std::size_t>(sample * kSampleElements);
    EXPECT_EQ(samples.elements()[at], own.loss);
    EXPECT_EQ(samples.elements()[at + 1], static_cast<double>(own.counted));
    loss += own.loss;
  }
  EXPECT_DOUBLE_EQ(loss, all.loss);
}

TEST(SquaredError, TellsOfEachSample) {
  Context context(2);
  const auto prediction = randoms<float>({4, 3}, 1);
  const auto target = randoms<float>({4, 3}, 2);
  Tensor<double> samples({4, kSampleElements});
  std::ranges::fill(samples.elements(), -1.0);
  const std::int64_t valid = 3;
  const LossSums all = sums_of([&](const TensorView& sums) {
    mean_squared_error(context, prediction.view(), target.view(), valid, 1.0, {}, sums, {},
                       samples.view());
  });
  double loss = 0.0;
  for (std::int64_t sample = 0; sample < 4; ++sample) {
    const auto row = [&](const auto& tensor) {
      return tensor.view().flat_slice(sample * 3, 3).reshaped({1, 3});
    };
    const LossSums own =
        squared_error_sums(context, row(prediction), row(target), sample < valid ? 1 : 0, 1.0, {});
    EXPECT_EQ(samples[sample * kSampleElements], own.loss);
    EXPECT_EQ(samples[sample * kSampleElements + 1], sample < valid ? 1.0 : 0.0);
    loss += own.loss;
  }
  EXPECT_EQ(loss, all.loss);
}

}  // namespace
}  // namespace strata::ops::loss_test
