#include "strata/core/hash.hpp"

#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

namespace strata {

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
