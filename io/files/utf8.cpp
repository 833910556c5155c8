#include "files/utf8.hpp"

#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace strata::io {
namespace {

constexpr std::size_t kLongestCharacter = 4;

// Number of bytes that follow a lead byte (0: not a lead byte) and the range of the second byte.
struct Lead {
  int following = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
};

Lead lead_of(unsigned byte) {
  if (byte >= 0xC2 && byte <= 0xDF) {
    return {1};
  }
  if (byte >= 0xE0 && byte <= 0xEF) {
    return {2, byte == 0xE0 ? 0xA0U : 0x80U, byte == 0xED ? 0x9FU : 0xBFU};
  }
  if (byte >= 0xF0 && byte <= 0xF4) {
    return {3, byte == 0xF0 ? 0x90U : 0x80U, byte == 0xF4 ? 0x8FU : 0xBFU};
  }
  return {};
}

}  // namespace

Utf8Prefix utf8_prefix(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080U;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & kHighBits) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const unsigned byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {
      ++at;
      continue;
    }
    const Lead lead = lead_of(byte);
    if (lead.following == 0) {
      return {at, Utf8Prefix::Rest::kInvalid};
    }
    for (int i = 1; i <= lead.following; ++i) {
      if (at + static_cast<std::size_t>(i) == text.size()) {
        return {at, Utf8Prefix::Rest::kCutShort};
      }
      const unsigned next = static_cast<unsigned char>(text[at + static_cast<std::size_t>(i)]);
      if (next < (i == 1 ? lead.low : 0x80U) || next > (i == 1 ? lead.high : 0xBFU)) {
        return {at, Utf8Prefix::Rest::kInvalid};
      }
    }
    at += 1 + static_cast<std::size_t>(lead.following);
  }
  return {at, Utf8Prefix::Rest::kNothing};
}

void append_utf8(char32_t character, std::string& text) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (character < 0x80) {
    add(character);
  } else if (character < 0x800) {
    add(0xC0U | character >> 6U);
    add(0x80U | (character & 0x3FU));
  } else if (character < 0x10000) {
    add(0xE0U | character >> 12U);
    add(0x80U | (character >> 6U & 0x3FU));
    add(0x80U | (character & 0x3FU));
  } else {
    add(0xF0U | character >> 18U);
    add(0x80U | (character >> 12U & 0x3FU));
    add(0x80U | (character >> 6U & 0x3FU));
    add(0x80U | (character & 0x3FU));
  }
}

std::string character_text(char32_t character) {
  const std::string code = fmt::format("U+{:04X}", static_cast<std::uint32_t>(character));
  if (character < 0x20 || (character >= 0x7F && character < 0xA0)) {
    return code;
  }
  std::string text = "'";
  append_utf8(character, text);
  return text + "' (" + code + ")";
}

std::string quoted_text(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t whole = utf8_prefix(text.substr(0, kLongestCharacter)).bytes;
    const auto byte = static_cast<unsigned char>(text[0]);
    if (byte == '\n') {
      quoted += "\\n";
    } else if (byte == '"' || byte == '\\') {
      quoted += {'\\', text[0]};
    } else if (whole == 0 || byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      const std::size_t bytes = first_character(text).bytes;
      quoted += text.substr(0, bytes);
      text.remove_prefix(bytes - 1);
    }
    text.remove_prefix(1);
  }
  return quoted + "\"";
}

}  // namespace strata::io
