// How the next token is chosen from logits, and where a text ends.
#include "strata/train/generation.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/train/stop_texts.hpp"

#include "error_of.hpp"

namespace strata::train::test::generation_test {
namespace {

using strata::test::error_of;

constexpr std::int64_t kDraws = 2000;

/// Probabilities 0.5, 0.25, 0.125, 0.125 of the ids 2, 0, 1, 3; the ids behind are likelier by far
/// but outside the vocabulary.
constexpr std::int64_t kVocabulary = 4;
const std::vector<float> kLogits{
    std::log(0.25F), std::log(0.125F), std::log(0.5F), std::log(0.125F), 50.0F, 60.0F};

/// The tokens of the first positions.
std::vector<std::int64_t> drawn(const std::vector<float>& logits, std::int64_t vocabulary,
                                const SamplingOptions& options, std::int64_t count = kDraws) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t position = 0; position < count; ++position) {
    tokens.push_back(sample_token(logits, vocabulary, options, position));
  }
  return tokens;
}

/// How often each id of kLogits is drawn, as a share.
std::vector<double> shares(const SamplingOptions& options) {
  std::vector<double> result(kLogits.size(), 0.0);
  for (const std::int64_t token : drawn(kLogits, kVocabulary, options)) {
    result[static_cast<std::size_t>(token)] += 1.0 / static_cast<double>(kDraws);
  }
  return result;
}

/// Four standard deviations of a share of kDraws draws, at most.
constexpr double kShareError = 0.045;

void expect_shares(const SamplingOptions& options, const std::vector<double>& expected) {
  EXPECT_THAT(shares(options), testing::Pointwise(testing::DoubleNear(kShareError), expected));
}

TEST(SampleToken, IsTheLikeliestAtTemperatureZero) {
  const SamplingOptions greedy{.temperature = 0.0, .top_k = 3, .top_p = 0.3};
  EXPECT_THAT(drawn(kLogits, kVocabulary, greedy, 20), testing::Each(2));
  EXPECT_EQ(sample_token(std::vector<float>{1.0F, 3.0F, 3.0F}, 3, greedy, 0), 1)
      << "of equal ones the smaller id";
}

TEST(SampleToken, FollowsTheProbabilities) {
  expect_shares({}, {0.25, 0.125, 0.5, 0.125, 0.0, 0.0});
}

TEST(SampleToken, NeverChoosesIdsBeyondTheVocabulary) {
  for (const double temperature : {0.0, 1.0, 1e6}) {
    EXPECT_THAT(drawn(kLogits, kVocabulary, {.temperature = temperature}),
                testing::Each(testing::Lt(kVocabulary)));
  }
}

TEST(SampleToken, IsOneOfTheLikeliestK) {
  EXPECT_THAT(drawn(kLogits, kVocabulary, {.top_k = 1}, 50), testing::Each(2));
  expect_shares({.top_k = 2}, {1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0, 0.0, 0.0});
  // Of the equal ids 1 and 3, the smaller.
  expect_shares({.top_k = 3}, {2.0 / 7.0, 1.0 / 7.0, 4.0 / 7.0, 0.0, 0.0, 0.0});
  EXPECT_EQ(drawn(kLogits, kVocabulary, {.top_k = 100}), drawn(kLogits, kVocabulary, {}));
}

TEST(SampleToken, IsOneOfTheLikeliestThatReachTopP) {
  EXPECT_THAT(drawn(kLogits, kVocabulary, {.top_p = 0.4}, 50), testing::Each(2));
  expect_shares({.top_p = 0.7}, {1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0, 0.0, 0.0});
  expect_shares({.top_p = 0.8}, {2.0 / 7.0, 1.0 / 7.0, 4.0 / 7.0, 0.0, 0.0, 0.0});
}

TEST(SampleToken, IsAtLeastMinPTimesAsLikelyAsTheLikeliest) {
  expect_shares({.min_p = 0.3}, {1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0, 0.0, 0.0});
  EXPECT_THAT(drawn(kLogits, kVocabulary, {.min_p = 1.0}, 50), testing::Each(2));
  EXPECT_EQ(drawn(kLogits, kVocabulary, {.min_p = 0.2}), drawn(kLogits, kVocabulary, {}));
  // The temperature comes first: the ratios are roots. top_p comes before: it keeps two of four.
  EXPECT_EQ(drawn(kLogits, kVocabulary, {.temperature = 2.0, .min_p = 0.49}),
            drawn(kLogits, kVocabulary, {.temperature = 2.0}));
  EXPECT_EQ(drawn(kLogits, kVocabulary, {.top_p = 0.7, .min_p = 0.2}),
            drawn(kLogits, kVocabulary, {.top_p = 0.7}));
}

TEST(PenalizeRepetitions, MakesTokensLessLikely) {
  std::vector<float> logits{3.0F, -3.0F, 0.0F, 4.0F};
  penalize_repetitions(logits, {0, 1, 2}, 1.5);
  EXPECT_EQ(logits, (std::vector<float>{2.0F, -4.5F, 0.0F, 4.0F}));
}

TEST(StopTexts, EndATextThatEndsWithOneOfThem) {
  struct Case {
    std::vector<std::string> stops;
    std::vector<std::string> pieces;
    std::string text;
    bool reached;
  };
  for (const Case& c : std::vector<Case>{{{}, {"ab", "c"}, "abc", false},
                                         {{"x"}, {"ab", "c"}, "abc", false},
                                         {{"bc"}, {"ab", "cd"}, "a", true},
                                         {{"aab"}, {"a", "a", "a", "b"}, "a", true},
                                         {{"aab"}, {"a", "a"}, "aa", false},
                                         {{"abc", "b"}, {"abc"}, "a", true},
                                         {{"abc", "bc"}, {"xa", "b", "c"}, "x", true},
                                         {{"\xC3\xA9"}, {"e\xC3", "\xA9"}, "e", true}}) {
    StopTexts stops(c.stops);
    std::string text;
    for (const std::string& piece : c.pieces) {
      ASSERT_FALSE(stops.reached());
      text += stops.take(piece);
    }
    EXPECT_EQ(stops.reached(), c.reached) << c.text;
    EXPECT_EQ(text + stops.finish(), c.text);
    EXPECT_EQ(stops.take("q") + stops.finish(), "q") << "the next text begins anew";
  }
  StopTexts stops({"###"});
  EXPECT_EQ(stops.take("a#"), "a") << "what may begin a stop text waits";
  EXPECT_EQ(stops.take("b"), "#b");
}

TEST(SampleToken, IsMoreUniformAtHigherTemperatures) {
  // Square roots of the probabilities, over their sum.
  const double sum = 0.5 + std::sqrt(0.5) + 2.0 * std::sqrt(0.125);
  expect_shares({.temperature = 2.0}, {0.5 / sum, std::sqrt(0.125) / sum, std::sqrt(0.5) / sum,
                                       std::sqrt(0.125) / sum, 0.0, 0.0});
  expect_shares({.temperature = 1e6}, {0.25, 0.25, 0.25, 0.25, 0.0, 0.0});
}

TEST(SampleToken, IsTheLikeliestAtTinyTemperatures) {
  for (const double temperature : {1e-3, 1e-300, std::numeric_limits<double>::denorm_min()}) {
    EXPECT_THAT(drawn(kLogits, kVocabulary, {.temperature = temperature}, 50), testing::Each(2));
    EXPECT_THAT(drawn({3e38F, -3e38F}, 2, {.temperature = temperature}, 50), testing::Each(0));
  }
}

TEST(SampleToken, ChoosesAmongEqualLogitsAlike) {
  const std::vector<float> equal(5, -7.5F);
  for (const double temperature : {1e-300, 1.0}) {
    std::vector<std::int64_t> times(equal.size(), 0);
    for (const std::int64_t token : drawn(equal, 5, {.temperature = temperature})) {
      ++times[static_cast<std::size_t>(token)];
    }
    EXPECT_THAT(times, testing::Each(testing::AllOf(testing::Gt(320), testing::Lt(480))));
  }
}

TEST(SampleToken, DependsOnSeedTextAndPositionAlone) {
  const auto first = [](const SamplingOptions& options) {
    return drawn(kLogits, kVocabulary, options, 40);
  };
  EXPECT_EQ(first({.seed = 7, .text = 3}), first({.seed = 7, .text = 3}));
  const std::set<std::vector<std::int64_t>> different{
      first({.seed = 7, .text = 3}), first({.seed = 8, .text = 3}), first({.seed = 7, .text = 4}),
      first({.seed = 3, .text = 7})};
  EXPECT_EQ(different.size(), 4U);
  const std::vector<std::int64_t> tokens = first({});
  EXPECT_GT(std::set(tokens.begin(), tokens.end()).size(), 1U) << "positions draw anew";
}

TEST(SampleToken, RefusesLogitsThatAreNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    for (const double temperature : {0.0, 1.0}) {
      const std::vector<float> logits{0.5F, bad, 0.25F};
      const SamplingOptions options{.temperature = temperature};
      EXPECT_THAT(error_of([&] { (void)sample_token(logits, 3, options, 0); }, ExitCode::kDiverged),
                  testing::AllOf(testing::HasSubstr("token 1"), testing::HasSubstr("finite"),
                                 testing::HasSubstr("earlier checkpoint")));
      EXPECT_EQ(sample_token(logits, 1, options, 0), 0) << "beyond the vocabulary it is nothing";
    }
  }
}

}  // namespace
}  // namespace strata::train::test::generation_test
