#include "tokenizer/character_map.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace strata::io::character_map_test {
namespace {

using namespace std::string_literals;

constexpr std::uint32_t kHasLeaf = 1U << 8U;
constexpr std::uint32_t kValue = 1U << 31U;

/// A field with bytes, of at most 16 KiB, in a message of Protocol Buffers.
std::string field(int number, const std::string& bytes) {
  std::string text{static_cast<char>(number << 3 | 2)};
  text += static_cast<char>((bytes.size() & 0x7FU) | 0x80U);
  return text + static_cast<char>(bytes.size() >> 7U) + bytes;
}

std::string number_text(std::uint32_t number) {
  std::string text(sizeof number, '\0');
  std::memcpy(text.data(), &number, sizeof number);
  return text;
}

struct Unit {
  std::uint32_t index = 0;
  std::uint32_t bits = 0;
};

/// A map of 256 units, zero but for these.
std::string map_of(const std::vector<Unit>& units, const std::string& texts = "ae\0b\0"s,
                   std::uint32_t trie_bytes = 1024) {
  std::string map = number_text(trie_bytes) + std::string(1024, '\0') + texts;
  for (const auto& [index, bits] : units) {
    map.replace(4 * (index + 1), 4, number_text(bits));
  }
  return map;
}

/// A model with a piece and a map, as in field 3, the normalizer, or 5, the denormalizer.
std::string model_of(const std::string& map, int spec = 3) {
  return field(1, "piece") + field(spec, field(1, "name") + field(2, map));
}

TEST(CharacterMap, WhatLeavesTheMapIsDamage) {
  const auto offset = [](std::uint32_t units) { return units << 10U; };
  struct Case {
    const char* what;
    std::string model;
    bool sound = false;
  };
  const std::string good =
      model_of(map_of({{0, offset(1)}, {1, offset(2) | kHasLeaf}, {3, kValue | 3}}));
  for (const Case& one : std::vector<Case>{
           {"children and a leaf inside", good, true},
           {"no map", field(1, "piece") + field(3, field(1, "identity")), true},
           {"an empty map", model_of(""), true},
           {"a leaf's bits are no offset", model_of(map_of({{7, kValue | offset(4000)}})), true},
           {"the root's are", model_of(map_of({{0, kValue | offset(4000)}}))},
           {"children outside", model_of(map_of({{5, offset(256)}}))},
           {"children far outside", model_of(map_of({{0, 0x7FFFFE00}}))},
           {"of the denormalizer", model_of(map_of({{0, 0x7FFFFE00}}), 5)},
           {"of the second of two normalizers",
            good + field(3, field(2, map_of({{5, offset(256)}})))},
           {"a leaf outside of the texts",
            model_of(map_of({{1, kHasLeaf}, {0, 0}, {1, kHasLeaf | offset(2)}, {3, kValue | 5}}))},
           {"a text without an end", model_of(map_of({}, "ae\0b"s))},
           {"no texts", model_of(map_of({}, ""))},
           {"a trie of no whole block", model_of(map_of({}, "\0"s, 1020))},
           {"a trie larger than the map", model_of(map_of({}, "\0"s, 2048))},
           {"a trie of no units", model_of(map_of({}, "\0"s, 0))},
           {"a map of three bytes", model_of("abc")},
           {"a field that does not end", good + "\x1a\x7f"},
           {"a number that does not end", good + "\x08\xff"},
           {"a group", good + "\x0b"}}) {
    EXPECT_EQ(character_maps_are_sound(one.model), one.sound) << one.what;
  }
}

}  // namespace
}  // namespace strata::io::character_map_test
