#include "strata/core/hash.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/digest_terms.hpp"

namespace strata::hash_test {
namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(i * 131 % 251));
  }
  return bytes;
}

// xxHash gives this value in its own sanity check of XXH3_64bits without seed.
TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash_of(""), 0x2D06800538D394C2ULL);
}

// The check value of CRC-32C, and 32 zero bytes of RFC 3720, B.4.
TEST(Hash, IsCrc32c) {
  EXPECT_EQ(crc32c_of("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c_of(std::string(32, '\0')), 0x8A9136AAU);
}

TEST(Hash, OfPiecesIsThatOfTheWhole) {
  const std::vector<std::byte> bytes = some_bytes(5000);
  const std::uint64_t whole = hash_of(std::span(bytes));
  for (const std::size_t piece : {1, 7, 64, 240, 256, 1024, 4999, 5000}) {
    StreamingHash hash;
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece) {
      hash.update(std::span(bytes).subspan(begin, std::min(piece, bytes.size() - begin)));
    }
    EXPECT_EQ(hash.digest(), whole) << "pieces of " << piece;
  }
}

TEST(Hash, OfNothingIsThatOfTheEmptyText) {
  EXPECT_EQ(StreamingHash().digest(), hash_of(""));
}

TEST(Hash, SeesOneBit) {
  std::vector<std::byte> bytes = some_bytes(3000);
  const std::uint64_t before = hash_of(std::span(bytes));
  bytes[1500] ^= std::byte{1};
  EXPECT_NE(hash_of(std::span(bytes)), before);
}

TEST(Hash, StateMoves) {
  const std::vector<std::byte> bytes = some_bytes(600);
  StreamingHash first;
  first.update(std::span(bytes).first(300));
  StreamingHash second(std::move(first));
  StreamingHash third;
  third = std::move(second);
  third.update(std::span(bytes).subspan(300));
  EXPECT_EQ(third.digest(), hash_of(std::span(bytes)));
}

TEST(Hash, TextHasSixteenDigits) {
  EXPECT_EQ(hash_text(0), "0000000000000000");
  EXPECT_EQ(hash_text(0xABCULL), "0000000000000abc");
}

TEST(Sha256, IsThatOfItsStandard) {
  // Source: NIST, Cryptographic Standards and Guidelines, example values of FIPS 180-4; the last of
  // FIPS 180-2, appendix B.3.
  const std::pair<std::string, const char*> cases[]{
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(sha256_text(text), expected);
    for (const std::size_t piece : {1, 55, 63, 64, 65, 130}) {
      Sha256 hash;
      for (std::size_t at = 0; at < std::min<std::size_t>(text.size(), 1000); at += piece) {
        hash.update(std::string_view(text).substr(at, std::min(piece, 1000 - at)));
      }
      EXPECT_EQ(hash.finish(), sha256_text(std::string_view(text).substr(0, 1000))) << piece;
    }
  }
}

/// Vector instructions may compute it.
TEST(Digest, IsTheSumOverElements) {
  const auto check = [](auto element) {
    for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 63U, 1000U}) {
      std::vector<decltype(element)> bits(count);
      std::iota(bits.begin(), bits.end(), element);
      DigestTerms terms;
      for (std::size_t i = 0; i < count; ++i) {
        terms.add(hash_of("a"), 5 + static_cast<std::int64_t>(i), bits[i]);
      }
      const Digest digest = digest_of("a", 5, std::span<const decltype(element)>(bits));
      EXPECT_EQ(digest.sum, terms.sum) << count;
      EXPECT_EQ(digest.check, terms.check) << count;
      EXPECT_EQ(digest.place, terms.sum * place_of(hash_of("a"))) << count;
    }
  };
  check(std::uint32_t{0xFFFFFF00});
  check(std::uint64_t{0xFFFFFFFFFFFFFF00});
}

TEST(Digest, FindsTheTensorThatDiffers) {
  std::vector<std::uint32_t> bits(100);
  std::iota(bits.begin(), bits.end(), 7U);
  const auto of = [&](const char* name) {
    return digest_of(name, 0, std::span<const std::uint32_t>(bits));
  };
  Digest before = of("a");
  before += of("b");
  for (std::uint32_t bit = 0; bit < 32; ++bit) {
    Digest after = of("a");
    bits[bit] ^= 1U << bit;
    after += of("b");
    bits[bit] ^= 1U << bit;
    EXPECT_NE(after.sum, before.sum);
    EXPECT_NE(after.check, before.check);
    EXPECT_TRUE(differ_in("b", before, after));
    EXPECT_FALSE(differ_in("a", before, after));
  }
  std::swap(bits[3], bits[4]);
  Digest swapped = of("a");
  swapped += of("b");
  EXPECT_NE(swapped, before);
  EXPECT_FALSE(differ_in("a", before, swapped));
  EXPECT_EQ(digest_in(digest_text(before)), before);
}

}  // namespace
}  // namespace strata::hash_test
