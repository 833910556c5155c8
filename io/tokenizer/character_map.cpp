#include "tokenizer/character_map.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "strata/core/utf8.hpp"

#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

/// Takes a whole number from the front of a message; nothing where it does not end.
std::optional<std::uint64_t> take_number(std::string_view& message) {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < 64 && !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    number |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80U) == 0) {
      return number;
    }
  }
  return std::nullopt;
}

/// Whether `check` holds for each text or message in this field. False for a damaged message.
/// Source: Protocol Buffers, "Encoding".
template <typename Check>
bool holds_for_field(std::string_view message, std::uint64_t field, const Check& check) {
  enum WireType { kNumber = 0, kEightBytes = 1, kLength = 2, kFourBytes = 5 };
  while (!message.empty()) {
    const auto tag = take_number(message);
    if (!tag || *tag > std::numeric_limits<std::uint32_t>::max()) {
      return false;
    }
    const std::uint64_t type = *tag & 7U;
    std::optional<std::uint64_t> bytes;
    if (type == kNumber) {
      bytes = take_number(message) ? std::optional<std::uint64_t>(0) : std::nullopt;
    } else if (type == kLength) {
      bytes = take_number(message);
    } else if (type == kEightBytes || type == kFourBytes) {
      bytes = type == kEightBytes ? 8 : 4;
    }
    if (!bytes || *bytes > message.size() ||
        (*tag >> 3U == field && type == kLength && !check(message.substr(0, *bytes)))) {
      return false;
    }
    message.remove_prefix(*bytes);
  }
  return true;
}

// A map: the size of its trie, the trie, and the texts that its leaves refer to.
// Source: Yata, "darts-clone", for the bits of a unit.
constexpr std::size_t kUnit = sizeof(std::uint32_t);
constexpr std::uint32_t kLeafValue = 1U << 31U;

/// The size of the trie in bytes (index 0), or a unit, counted from 1.
std::uint32_t word_of(std::string_view map, std::size_t index) {
  return load<std::uint32_t>(reinterpret_cast<const std::byte*>(map.data() + index * kUnit));
}

std::uint32_t offset_of(std::uint32_t bits) {
  return (bits >> 10U) << ((bits & (1U << 9U)) >> 6U);
}

bool has_leaf(std::uint32_t bits) {
  return (bits & (1U << 8U)) != 0;
}

}  // namespace

bool character_map_is_sound(std::string_view map) {
  constexpr std::uint32_t kBlock = 256;  // of units: the children of a unit are in one
  if (map.empty()) {
    return true;
  }
  const std::size_t trie_bytes = map.size() < kUnit ? 0 : word_of(map, 0);
  const std::size_t units = trie_bytes / kUnit;
  if (units == 0 || trie_bytes % (kBlock * kUnit) != 0 || trie_bytes >= map.size() - kUnit ||
      map.back() != '\0') {
    return false;
  }
  const std::size_t text_bytes = map.size() - kUnit - trie_bytes;
  for (std::size_t index = 0; index < units; ++index) {
    const std::uint32_t bits = word_of(map, index + 1);
    if (index > 0 && (bits & kLeafValue) != 0) {
      continue;
    }
    const std::size_t children = index ^ offset_of(bits);
    if (children >= units ||
        (has_leaf(bits) && (word_of(map, children + 1) & ~kLeafValue) >= text_bytes)) {
      return false;
    }
  }
  return true;
}

std::optional<std::string_view> replacement_in(std::string_view map, std::string_view text) {
  if (map.empty()) {
    return std::nullopt;
  }
  std::size_t index = offset_of(word_of(map, 1));
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    index ^= byte;
    const std::uint32_t bits = word_of(map, index + 1);
    if (byte == 0 || (bits & (kLeafValue | 0xFFU)) != byte) {
      return std::nullopt;
    }
    index ^= offset_of(bits);
    if (has_leaf(bits)) {
      const std::size_t texts = kUnit + word_of(map, 0);
      const char* begin = map.data() + texts + (word_of(map, index + 1) & ~kLeafValue);
      const std::string_view found(begin);
      return utf8_prefix(found).rest == Utf8Prefix::Rest::kNothing ? std::optional(found)
                                                                   : std::nullopt;
    }
  }
  return std::nullopt;
}

bool character_maps_are_sound(std::string_view model) {
  constexpr std::uint64_t kNormalizer = 3;
  constexpr std::uint64_t kDenormalizer = 5;
  constexpr std::uint64_t kMap = 2;
  const auto check = [](std::string_view spec) {
    return holds_for_field(spec, kMap, character_map_is_sound);
  };
  return holds_for_field(model, kNormalizer, check) && holds_for_field(model, kDenormalizer, check);
}

}  // namespace strata::io
