#include "strata/core/random.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <Random123/philox.h>
#include <gtest/gtest.h>

namespace strata::random_test {
namespace {

using Words = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;

/// Philox4x32-10 as the paper writes it, word by word.
Words philox(Words counter, Key key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

// The known answers that come with Random123 (tests/kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  struct Case {
    Words counter;
    Key key;
    Words answer;
  };
  const std::array<Case, 3> cases{
      {{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}},
       {{~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}, {0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}},
       {{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
        {0xa4093822U, 0x299f31d0U},
        {0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}}}};
  for (const Case& c : cases) {
    EXPECT_EQ(philox(c.counter, c.key), c.answer);
    const r123::Philox4x32::ctr_type library = r123::Philox4x32()(
        {{c.counter[0], c.counter[1], c.counter[2], c.counter[3]}}, {{c.key[0], c.key[1]}});
    EXPECT_EQ((Words{library[0], library[1], library[2], library[3]}), c.answer);
  }
}

TEST(RandomStream, IsPhiloxUnderAKeyMixedFromSeedPurposeAndSubject) {
  const std::uint64_t seed = 0x0123456789abcdefU;
  const std::uint64_t subject = 0xfedcba9876543210U;
  const RandomStream stream(seed, RandomPurpose::kDropout, subject);
  const Words mixed = philox({0x76543210U, 0xfedcba98U, 2, 0}, {0x89abcdefU, 0x01234567U});
  const std::uint64_t low = 0x1111222233334444U;
  const std::uint64_t high = 0x5555666677778888U;
  EXPECT_EQ(stream.words(low, high),
            philox({0x33334444U, 0x11112222U, 0x77778888U, 0x55556666U}, {mixed[0], mixed[1]}));
}

TEST(RandomStream, FillGivesWhatWordsGive) {
  const RandomStream stream(7, RandomPurpose::kDropout, 9);
  // The second and third begin where the counter's low word runs over.
  for (const std::uint64_t first : {0ULL, 0xFFFFFFFDULL, 0xFFFFFFFFFFFFFFFDULL}) {
    for (const std::uint64_t high : {0ULL, 5ULL, 0xABCDEF0123456789ULL}) {
      for (const std::size_t count : {0, 1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 97, 1000}) {
        constexpr std::uint32_t kGuard = 0x5A5A5A5AU;
        std::vector<std::uint32_t> out(count + 1, kGuard);
        stream.fill(first, high, std::span(out).first(count));
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], stream.words(first + i / 4, high)[i % 4]) << i << " of " << count;
        }
        EXPECT_EQ(out[count], kGuard);
      }
    }
  }
}

TEST(RandomStream, StreamsDifferBySeedPurposeAndSubject) {
  const Words words = RandomStream(1, RandomPurpose::kInitialise, 1).words(0);
  EXPECT_NE(words, RandomStream(2, RandomPurpose::kInitialise, 1).words(0));
  EXPECT_NE(words, RandomStream(1, RandomPurpose::kShuffle, 1).words(0));
  EXPECT_NE(words, RandomStream(1, RandomPurpose::kInitialise, 2).words(0));
  EXPECT_NE(subject_of("dense1.weight"), subject_of("dense2.weight"));
}

// Bounds are five standard errors of each moment over this many values.
constexpr std::uint64_t kValues = 200000;

struct Moments {
  double mean = 0.0;
  double variance = 0.0;
  double fourth = 0.0;
};

template <typename Function>
Moments moments_of(const Function& value, double centre) {
  Moments moments;
  for (std::uint64_t i = 0; i < kValues; ++i) {
    const double x = value(i) - centre;
    moments.mean += x;
    moments.variance += x * x;
    moments.fourth += x * x * x * x;
  }
  const auto count = static_cast<double>(kValues);
  return {moments.mean / count, moments.variance / count, moments.fourth / count};
}

TEST(RandomStream, UniformHasTheMomentsOfOne) {
  const RandomStream stream(3, RandomPurpose::kInitialise, 4);
  const double error = 5.0 / std::sqrt(static_cast<double>(kValues));
  double smallest = 1.0;
  double largest = 0.0;
  const Moments moments = moments_of(
      [&](std::uint64_t i) {
        const double x = stream.uniform(i);
        smallest = std::min(smallest, x);
        largest = std::max(largest, x);
        return x;
      },
      0.5);
  EXPECT_GE(smallest, 0.0);
  EXPECT_LT(smallest, 1e-3);
  EXPECT_LT(largest, 1.0);
  EXPECT_GT(largest, 1.0 - 1e-3);
  EXPECT_NEAR(moments.mean, 0.0, error * std::sqrt(1.0 / 12.0));
  EXPECT_NEAR(moments.variance, 1.0 / 12.0, error * std::sqrt(1.0 / 180.0));
}

TEST(RandomStream, NormalHasTheMomentsOfOne) {
  const RandomStream stream(3, RandomPurpose::kInitialise, 4);
  const double error = 5.0 / std::sqrt(static_cast<double>(kValues));
  const Moments moments = moments_of([&](std::uint64_t i) { return stream.normal(i); }, 0.0);
  EXPECT_NEAR(moments.mean, 0.0, error);
  EXPECT_NEAR(moments.variance, 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(moments.fourth, 3.0, error * std::sqrt(96.0));
}

TEST(Permutation, TakesEveryValueOnce) {
  for (const std::int64_t count :
       {1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 16, 17, 31, 97, 100, 101, 997, 1000, 1024, 7919, 10000}) {
    const Permutation permutation(RandomStream(11, RandomPurpose::kShuffle, 0), count);
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = permutation(i);
      ASSERT_TRUE(value >= 0 && value < count) << value << " of " << count;
      ASSERT_EQ(++seen[static_cast<std::size_t>(value)], 1) << value << " of " << count;
    }
  }
}

TEST(Permutation, DiffersByEpochAndMovesMostElements) {
  constexpr std::int64_t kCount = 1000;
  const Permutation first(RandomStream(11, RandomPurpose::kShuffle, 0), kCount);
  const Permutation second(RandomStream(11, RandomPurpose::kShuffle, 1), kCount);
  int equal = 0;
  int fixed = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    equal += first(i) == second(i) ? 1 : 0;
    fixed += first(i) == i ? 1 : 0;
  }
  // Both are Poisson with mean 1 for a random permutation.
  EXPECT_LE(equal, 8);
  EXPECT_LE(fixed, 8);
}

TEST(Permutation, RefusesWhatLiesOutside) {
  const RandomStream stream(1, RandomPurpose::kShuffle, 0);
  EXPECT_THROW(Permutation(stream, 0), std::logic_error);
  const Permutation permutation(stream, 10);
  EXPECT_THROW(static_cast<void>(permutation(-1)), std::logic_error);
  EXPECT_THROW(static_cast<void>(permutation(10)), std::logic_error);
}

}  // namespace
}  // namespace strata::random_test
