#include "strata/ops/split_cross_entropy.hpp"

#include <algorithm>
#include <limits>

#include "loss_sums.hpp"
#include "tensors.hpp"

namespace strata::ops::split_cross_entropy_test {
namespace {

using namespace test;

/// The vocabulary cut into shards, the shards of logits one after the other as ranks hold them.
template <typename T>
class Split {
 public:
  /// `cuts` are the shards' first ids and the end of the last.
  Split(const Tensor<T>& logits, const Tensor<std::int64_t>& targets,
        std::vector<std::int64_t> cuts)
      : targets_(targets),
        cuts_(std::move(cuts)),
        rows_(static_cast<std::int64_t>(targets.elements().size())),
        parts_({shards(), rows_, kCrossEntropyParts}),
        log_sums_({rows_}),
        gradient_({rows_, cuts_.back()}) {
    for (std::int64_t shard = 0; shard < shards(); ++shard) {
      logits_.emplace_back(Shape{rows_, ids(shard)});
      for (std::int64_t i = 0; i < rows_ * ids(shard); ++i) {
        logits_.back()[i] = logits[i / ids(shard) * cuts_.back() + first(shard) + i % ids(shard)];
      }
    }
  }

  LossSums losses(Context& context, std::int64_t valid_rows, std::span<const ReductionStep> steps) {
    for (std::int64_t shard = 0; shard < shards(); ++shard) {
      cross_entropy_parts(
          context, of(shard).view(), targets_.view(), first(shard), ids(shard),
          parts_.view()
              .flat_slice(shard * rows_ * kCrossEntropyParts, rows_ * kCrossEntropyParts)
              .reshaped({rows_, kCrossEntropyParts}));
    }
    return test::sums_of([&](const TensorView& sums) {
      combine_cross_entropy(context, steps, parts_.view(), targets_.view(), cuts_.back(),
                            valid_rows, log_sums_.view(), sums);
    });
  }

  /// The gradient of all shards, in place of the logits, as one tensor of rows x vocabulary.
  const Tensor<T>& gradient(Context& context, std::int64_t valid_rows, double scale) {
    for (std::int64_t shard = 0; shard < shards(); ++shard) {
      Tensor<T>& part = of(shard);
      cross_entropy_gradient(context, part.view(), targets_.view(), first(shard), ids(shard),
                             log_sums_.view(), valid_rows, scale, part.view());
      for (std::int64_t i = 0; i < rows_ * ids(shard); ++i) {
        gradient_[i / ids(shard) * cuts_.back() + first(shard) + i % ids(shard)] = part[i];
      }
    }
    return gradient_;
  }

  [[nodiscard]] const Tensor<Compute<T>>& log_sums() const { return log_sums_; }

 private:
  [[nodiscard]] std::int64_t shards() const { return static_cast<std::int64_t>(cuts_.size()) - 1; }
  [[nodiscard]] std::int64_t first(std::int64_t shard) const {
    return cuts_[static_cast<std::size_t>(shard)];
  }
  [[nodiscard]] std::int64_t ids(std::int64_t shard) const {
    return first(shard + 1) - first(shard);
  }
  Tensor<T>& of(std::int64_t shard) { return logits_[static_cast<std::size_t>(shard)]; }

  const Tensor<std::int64_t>& targets_;
  std::vector<std::int64_t> cuts_;
  std::int64_t rows_;
  std::vector<Tensor<T>> logits_;
  Tensor<Compute<T>> parts_;
  Tensor<Compute<T>> log_sums_;
  Tensor<T> gradient_;
};

Tensor<std::int64_t> targets_of(std::int64_t rows, std::int64_t vocabulary) {
  Tensor<std::int64_t> targets({rows});
  for (std::int64_t row = 0; row < rows; ++row) {
    targets[row] = (row * 7 + 3) % vocabulary;
  }
  return targets;
}

struct Cut {
  std::vector<std::int64_t> cuts;
  std::vector<ReductionStep> steps;
};

std::vector<Cut> cuts_of(std::int64_t vocabulary) {
  std::vector<Cut> cuts{{{0, vocabulary}, {}}};
  if (vocabulary >= 4) {
    const std::int64_t half = vocabulary / 2;
    cuts.push_back({{0, half, vocabulary}, {{0, 1}}});
    cuts.push_back({{0, 1, half, half + 1, vocabulary}, {{0, 1}, {2, 3}, {0, 2}}});
  }
  return cuts;
}

template <typename T>
class SplitCrossEntropyTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(SplitCrossEntropyTyped, Types);

TYPED_TEST(SplitCrossEntropyTyped, AgreesWithItsFormula) {
  using T = TypeParam;
  using C = Compute<T>;
  constexpr double kNear = sizeof(C) == 4 ? 1e-6 : 1e-13;
  Context context(1);
  for (const std::int64_t vocabulary : {1, 2, 10, 65, 5000}) {
    const auto logits = randoms<T>({9, vocabulary}, 1, 3.0);
    const auto targets = targets_of(9, vocabulary);
    double loss = 0.0;
    std::int64_t correct = 0;
    std::vector<double> gradient;
    std::vector<double> log_sums;
    for (std::int64_t row = 0; row < 9; ++row) {
      double sum = 0.0;
      double largest = -std::numeric_limits<double>::infinity();
      const auto logit = [&](std::int64_t id) { return as_double(logits[row * vocabulary + id]); };
      for (std::int64_t id = 0; id < vocabulary; ++id) {
        sum += std::exp(logit(id));
        largest = std::max(largest, logit(id));
      }
      log_sums.push_back(std::log(sum));
      for (std::int64_t id = 0; id < vocabulary; ++id) {
        gradient.push_back(0.25 * (std::exp(logit(id)) / sum - (id == targets[row] ? 1.0 : 0.0)));
      }
      loss += log_sums.back() - logit(targets[row]);
      correct += logit(targets[row]) >= largest ? 1 : 0;
    }
    for (const Cut& cut : cuts_of(vocabulary)) {
      Split<T> split(logits, targets, cut.cuts);
      const LossSums sums = split.losses(context, 9, cut.steps);
      EXPECT_NEAR(sums.loss, loss, kNear * (loss + 1.0)) << vocabulary;
      EXPECT_EQ(sums.correct, correct);
      for (std::int64_t row = 0; row < 9; ++row) {
        EXPECT_NEAR(as_double(split.log_sums()[row]), log_sums[static_cast<std::size_t>(row)],
                    kNear * 10.0);
      }
      const Tensor<T>& result = split.gradient(context, 9, 0.25);
      const double half_ulp = sizeof(T) == 2 ? test::kHalfUlp : 0.0;
      for (std::int64_t i = 0; i < 9 * vocabulary; ++i) {
        const double expected = gradient[static_cast<std::size_t>(i)];
        ASSERT_NEAR(as_double(result[i]), expected, half_ulp * std::fabs(expected) + kNear)
            << vocabulary;
      }
    }
  }
}

TYPED_TEST(SplitCrossEntropyTyped, AgreesWithTheWholeCrossEntropy) {
  using T = TypeParam;
  Context context(1);
  const auto logits = randoms<T>({20, 1000}, 1, 3.0);
  const auto targets = targets_of(20, 1000);
  Tensor<T> dlogits({20, 1000});
  const LossSums whole =
      cross_entropy_sums(context, logits.view(), targets.view(), 18, 0.5, dlogits.view());
  Split<T> split(logits, targets, {0, 1000});
  const LossSums sums = split.losses(context, 18, {});
  EXPECT_NEAR(sums.loss, whole.loss, 1e-6 * whole.loss);
  EXPECT_EQ(sums.correct, whole.correct);
  const Tensor<T>& gradient = split.gradient(context, 18, 0.5);
  EXPECT_LT((test::relative_error<T, T>(gradient.elements(), dlogits.elements())),
            sizeof(T) == 2 ? 1e-3 : 1e-6);
}

TYPED_TEST(SplitCrossEntropyTyped, BitsDependOnNeitherThreadsNorValidRows) {
  using T = TypeParam;
  const auto logits = randoms<T>({61, 1003}, 1, 2.0);
  const auto targets = targets_of(61, 1003);
  const std::vector<ReductionStep> steps{{0, 1}};
  Context single(1);
  Split<T> first(logits, targets, {0, 500, 1003});
  const double loss = first.losses(single, 60, steps).loss;
  const std::vector<T> gradient = first.gradient(single, 60, 0.1).values();
  for (const int threads : {2, 3}) {
    Context context(threads);
    Split<T> split(logits, targets, {0, 500, 1003});
    EXPECT_EQ(split.losses(context, 60, steps).loss, loss);
    EXPECT_TRUE(split.log_sums().values() == first.log_sums().values());
    EXPECT_TRUE(split.gradient(context, 60, 0.1).values() == gradient);
  }
  EXPECT_TRUE(std::all_of(gradient.end() - 1003, gradient.end(),
                          [](T element) { return as_double(element) == 0.0; }));
  Split<T> all(logits, targets, {0, 500, 1003});
  EXPECT_GT(all.losses(single, 61, steps).loss, loss);
}

TEST(SplitCrossEntropy, BackwardAgreesWithFiniteDifferences) {
  Context context(1);
  auto logits = randoms<double>({4, 11}, 1);
  const auto targets = targets_of(4, 11);
  const std::vector<ReductionStep> steps{{1, 2}, {0, 1}};
  Split<double> split(logits, targets, {0, 3, 4, 11});
  static_cast<void>(split.losses(context, 3, steps));
  const std::vector<double> gradient = split.gradient(context, 3, 0.5).values();
  expect_gradient(
      [&] {
        return 0.5 * Split<double>(logits, targets, {0, 3, 4, 11}).losses(context, 3, steps).loss;
      },
      logits.elements(), gradient);
}

TEST(SplitCrossEntropy, TellsTheFirstRowWhoseTargetIsOutOfRange) {
  Context context(1);
  const std::vector<ReductionStep> steps{{0, 1}};
  const auto logits = randoms<float>({5, 20}, 1);
  auto targets = targets_of(5, 20);
  EXPECT_EQ(Split<float>(logits, targets, {0, 10, 20}).losses(context, 5, steps).bad_row, -1);
  const LossSums before = Split<float>(logits, targets, {0, 10, 20}).losses(context, 2, steps);
  targets[4] = -7;
  for (const std::int64_t wrong : {20, -2}) {
    targets[2] = wrong;
    targets[3] = wrong;
    const LossSums sums = Split<float>(logits, targets, {0, 10, 20}).losses(context, 4, steps);
    EXPECT_EQ(sums.bad_row, 2);
    EXPECT_EQ(sums.bad_label, wrong);
    EXPECT_EQ(sums.loss, before.loss);
    EXPECT_EQ(sums.correct, before.correct);
    // Rows that do not count may have any target.
    EXPECT_EQ(Split<float>(logits, targets, {0, 10, 20}).losses(context, 2, steps).bad_row, -1);
  }
}

TEST(SplitCrossEntropy, UncountedRowsAreLeftOut) {
  Context context(1);
  const std::vector<ReductionStep> steps{{0, 1}};
  const auto logits = randoms<float>({5, 20}, 1);
  auto targets = targets_of(5, 20);
  const LossSums before = Split<float>(logits, targets, {0, 10, 20}).losses(context, 2, steps);
  EXPECT_EQ(before.counted, 2);
  targets[2] = targets[3] = kUncounted;
  Split<float> split(logits, targets, {0, 10, 20});
  const LossSums sums = split.losses(context, 4, steps);
  EXPECT_EQ(sums.loss, before.loss);
  EXPECT_EQ(sums.counted, 2);
  EXPECT_EQ(sums.bad_row, -1);
  const Tensor<float>& gradient = split.gradient(context, 4, 1.0);
  EXPECT_NE(gradient[0], 0.0F);
  for (std::int64_t i = 40; i < 100; ++i) {
    EXPECT_EQ(gradient[i], 0.0F);
  }
}

TEST(SplitCrossEntropy, NoRowsGiveNoLoss) {
  Context context(1);
  const Tensor<float> parts({2, 0, kCrossEntropyParts});
  const Tensor<std::int64_t> targets({0});
  Tensor<float> log_sums({0});
  const std::vector<ReductionStep> steps{{0, 1}};
  const LossSums sums = test::sums_of([&](const TensorView& into) {
    combine_cross_entropy(context, steps, parts.view(), targets.view(), 20, 0, log_sums.view(),
                          into);
  });
  EXPECT_EQ(sums.loss, 0.0);
  EXPECT_EQ(sums.correct, 0);
  EXPECT_EQ(sums.bad_row, -1);
}

TEST(SplitCrossEntropy, TheFirstOfEqualLogitsIsRightAndANotANumberReachesTheLoss) {
  Context context(1);
  const std::vector<ReductionStep> steps{{0, 1}};
  for (std::int64_t target = 0; target < 20; ++target) {
    Tensor<float> logits({1, 20});
    Tensor<std::int64_t> label({1});
    label[0] = target;
    // The ids 4, 7 and 12 are as likely as each other, and likelier than all others.
    logits[4] = logits[7] = logits[12] = 1.0F;
    EXPECT_EQ(Split<float>(logits, label, {0, 10, 20}).losses(context, 1, steps).correct,
              target == 4 ? 1 : 0);
    EXPECT_EQ(cross_entropy_sums(context, logits.view(), label.view(), 1, 1.0, {}).correct,
              target == 4 ? 1 : 0);
  }
  Tensor<std::int64_t> targets({1});
  targets[0] = 3;
  for (const std::int64_t at : {0, 3, 5, 10, 19}) {
    Tensor<float> bad({1, 20});
    bad[3] = 1.0F;
    bad[at] = NAN;
    const LossSums sums = Split<float>(bad, targets, {0, 10, 20}).losses(context, 1, steps);
    EXPECT_TRUE(std::isnan(sums.loss));
    EXPECT_EQ(sums.correct, 0) << "a NaN at " << at;
  }
}

}  // namespace
}  // namespace strata::ops::split_cross_entropy_test
