#include "strata/core/hash.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "strata/core/digest_terms.hpp"

namespace strata {
namespace {

template <typename Bits>
Digest digest_of_bits(std::string_view name, std::int64_t first, std::span<const Bits> bits) {
  const std::uint64_t tensor = hash_of(name);
  DigestTerms terms;
  for (const Bits element : bits) {
    terms.add(tensor, first++, element);
  }
  return {.sum = terms.sum, .check = terms.check, .place = terms.sum * place_of(tensor)};
}

}  // namespace

std::uint64_t hash_of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

StreamingHash::StreamingHash() : state_(XXH3_createState()) {
  if (state_ == nullptr) {
    throw std::bad_alloc();
  }
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

StreamingHash::~StreamingHash() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}

StreamingHash::StreamingHash(StreamingHash&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)) {}

StreamingHash& StreamingHash::operator=(StreamingHash&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void StreamingHash::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

std::uint64_t StreamingHash::digest() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

void Sha256::compress(const std::byte* block) {
  static constexpr std::array<std::uint32_t, 64> kRounds{
      0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4,
      0xAB1C5ED5, 0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE,
      0x9BDC06A7, 0xC19BF174, 0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F,
      0x4A7484AA, 0x5CB0A9DC, 0x76F988DA, 0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7,
      0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967, 0x27B70A85, 0x2E1B2138, 0x4D2C6DFC,
      0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85, 0xA2BFE8A1, 0xA81A664B,
      0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070, 0x19A4C116,
      0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
      0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7,
      0xC67178F2};
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) {
    for (std::size_t b = 0; b < 4; ++b) {
      w[t] = (w[t] << 8U) | std::to_integer<std::uint32_t>(block[4 * t + b]);
    }
  }
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t low =
        std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3U);
    const std::uint32_t high =
        std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10U);
    w[t] = high + w[t - 7] + low + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + kRounds[t] + w[t];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<std::uint32_t, 8> sums{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < sums.size(); ++i) {
    state_[i] += sums[i];
  }
}

void Sha256::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t at = bytes_ % kBlockBytes;
    const std::size_t count = std::min(bytes.size(), kBlockBytes - at);
    if (count == kBlockBytes) {
      compress(bytes.data());
    } else {
      std::memcpy(&block_[at], bytes.data(), count);
      if (at + count == kBlockBytes) {
        compress(block_.data());
      }
    }
    bytes_ += count;
    bytes = bytes.subspan(count);
  }
}

std::string Sha256::finish() {
  constexpr std::size_t kLengthBytes = 8;
  const std::uint64_t bits = 8 * bytes_;
  std::array<std::byte, kBlockBytes + kLengthBytes> end{std::byte{0x80}};
  const std::size_t at = bytes_ % kBlockBytes;
  const std::size_t padding =
      (at < kBlockBytes - kLengthBytes ? kBlockBytes : 2 * kBlockBytes) - kLengthBytes - at;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    end[padding + i] = static_cast<std::byte>(bits >> (8 * (kLengthBytes - 1 - i)));
  }
  update(std::span(end).first(padding + kLengthBytes));
  std::string text;
  for (const std::uint32_t word : state_) {
    text += fmt::format("{:08x}", word);
  }
  return text;
}

std::string sha256_text(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.finish();
}

Digest& Digest::operator+=(const Digest& other) {
  sum += other.sum;
  check += other.check;
  place += other.place;
  return *this;
}

Digest digest_of(std::string_view name, std::int64_t first, std::span<const std::uint32_t> bits) {
  return digest_of_bits(name, first, bits);
}

Digest digest_of(std::string_view name, std::int64_t first, std::span<const std::uint64_t> bits) {
  return digest_of_bits(name, first, bits);
}

bool differ_in(std::string_view name, const Digest& left, const Digest& right) {
  return right.place - left.place == (right.sum - left.sum) * place_of(hash_of(name));
}

std::string digest_text(const Digest& digest) {
  return fmt::format("{:016x}{:016x}{:016x}", digest.sum, digest.check, digest.place);
}

Digest digest_in(const std::string& text) {
  constexpr std::size_t kDigits = kDigestDigits / 3;
  const auto word = [&](std::size_t i) {
    return std::stoull(text.substr(kDigits * i, kDigits), nullptr, 16);
  };
  return {.sum = word(0), .check = word(1), .place = word(2)};
}

std::uint32_t crc32c_of(std::string_view bytes) {
  constexpr auto kTable = [] {
    constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
      std::uint32_t rest = byte;
      for (int bit = 0; bit < 8; ++bit) {
        rest = (rest >> 1) ^ ((rest & 1) != 0 ? kReversedPolynomial : 0);
      }
      table[byte] = rest;
    }
    return table;
  }();
  std::uint32_t rest = ~0U;
  for (const char byte : bytes) {
    rest = (rest >> 8) ^ kTable[(rest ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~rest;
}

std::string hash_text(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace strata
