#include "tokenizer/character_map.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

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

/// A map: the size of its trie, the trie, and the texts that its leaves refer to.
/// Source: Yata, "darts-clone", for the bits of a unit.
bool is_sound(std::string_view map) {
  constexpr std::size_t kUnit = sizeof(std::uint32_t);
  constexpr std::uint32_t kBlock = 256;  // of units: the children of a unit are in one
  constexpr std::uint32_t kLeafValue = 1U << 31U;
  const auto unit = [&](std::size_t index) {
    return load<std::uint32_t>(
        reinterpret_cast<const std::byte*>(map.data() + (index + 1) * kUnit));
  };
  if (map.empty()) {
    return true;
  }
  const std::size_t trie_bytes =
      map.size() < kUnit ? 0 : load<std::uint32_t>(reinterpret_cast<const std::byte*>(map.data()));
  const std::size_t units = trie_bytes / kUnit;
  if (units == 0 || trie_bytes % (kBlock * kUnit) != 0 || trie_bytes >= map.size() - kUnit ||
      map.back() != '\0') {
    return false;
  }
  const std::size_t text_bytes = map.size() - kUnit - trie_bytes;
  for (std::size_t index = 0; index < units; ++index) {
    const std::uint32_t bits = unit(index);
    if (index > 0 && (bits & kLeafValue) != 0) {
      continue;
    }
    const std::uint32_t offset = (bits >> 10U) << ((bits & (1U << 9U)) >> 6U);
    const std::size_t children = index ^ offset;
    const bool has_leaf = (bits & (1U << 8U)) != 0;
    if (children >= units || (has_leaf && (unit(children) & ~kLeafValue) >= text_bytes)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool character_maps_are_sound(std::string_view model) {
  constexpr std::uint64_t kNormalizer = 3;
  constexpr std::uint64_t kDenormalizer = 5;
  constexpr std::uint64_t kMap = 2;
  const auto check = [](std::string_view spec) { return holds_for_field(spec, kMap, is_sound); };
  return holds_for_field(model, kNormalizer, check) && holds_for_field(model, kDenormalizer, check);
}

}  // namespace strata::io
