#include "strata/core/utf8.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace strata {
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
  std::string code = fmt::format("U+{:04X}", static_cast<std::uint32_t>(character));
  if (character < 0x20 || (character >= 0x7F && character < 0xA0)) {
    return code;
  }
  std::string text = "'";
  append_utf8(character, text);
  return text + "' (" + code + ")";
}

namespace {

// Controls of the terminal (C0, DEL, C1) and of the writing direction.
bool is_control(char32_t character) {
  return character < 0x20 || (character >= 0x7F && character < 0xA0) ||
         (character >= 0x2028 && character <= 0x202E) ||
         (character >= 0x2066 && character <= 0x2069) || character == 0x200E || character == 0x200F;
}

/// What passes unchanged through escaped().
enum class Kept { kNothing, kBreaks };

std::string escaped(std::string_view text, Kept kept) {
  std::string result;
  while (!text.empty()) {
    const bool whole = utf8_prefix(text.substr(0, kLongestCharacter)).bytes > 0;
    const Utf8Character character = whole ? first_character(text) : Utf8Character{0, 1};
    const bool is_break = text[0] == '\n' || text[0] == '\t';
    if (is_break ? kept == Kept::kBreaks : whole && !is_control(character.value)) {
      result += text.substr(0, character.bytes);
    } else if (text[0] == '\n') {
      result += "\\n";
    } else {
      for (const char byte : text.substr(0, character.bytes)) {
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    }
    text.remove_prefix(character.bytes);
  }
  return result;
}

// The first two thirds and the last third of a text that is longer than `most_bytes`.
std::string shortened(std::string_view text, std::size_t most_bytes, Kept kept) {
  if (text.size() <= most_bytes) {
    return escaped(text, kept);
  }
  const auto is_inside = [&](std::size_t at) { return continues_character(text[at]); };
  std::size_t head = most_bytes - most_bytes / 3;
  std::size_t tail = text.size() - most_bytes / 3;
  for (std::size_t i = 1; i < kLongestCharacter; ++i) {
    head -= is_inside(head) ? 1 : 0;
    tail += tail < text.size() && is_inside(tail) ? 1 : 0;
  }
  return fmt::format("{}... ({} bytes) ...{}", escaped(text.substr(0, head), kept), tail - head,
                     escaped(text.substr(tail), kept));
}

}  // namespace

std::string name_problem(std::string_view text) {
  if (utf8_prefix(text).rest != Utf8Prefix::Rest::kNothing) {
    return "is not UTF-8 text";
  }
  return text.find('\0') == std::string_view::npos ? "" : "holds a NUL byte";
}

std::string visible(std::string_view text) {
  return escaped(text, Kept::kBreaks);
}

std::string printable(std::string_view text, std::size_t most_bytes) {
  return shortened(text, most_bytes, Kept::kNothing);
}

std::string printable_lines(std::string_view text) {
  constexpr std::size_t kLongestLine = 1000;
  constexpr std::size_t kMostLines = 10000;
  std::string result;
  std::size_t lines = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (++lines > kMostLines) {
      return result + fmt::format("... ({} bytes)", text.size() - begin);
    }
    result += shortened(text.substr(begin, end - begin), kLongestLine, Kept::kBreaks);
    result += end < text.size() ? "\n" : "";
    begin = end + 1;
  }
  return result;
}

std::string quoted_text(std::string_view text) {
  std::string marked;
  for (const char character : text) {
    marked += character == '"' || character == '\\' ? std::string{'\\', character}
                                                    : std::string{character};
  }
  return '"' + escaped(marked, Kept::kNothing) + '"';
}

}  // namespace strata
