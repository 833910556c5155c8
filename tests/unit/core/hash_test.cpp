#include "strata/core/hash.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace strata::hash_test
