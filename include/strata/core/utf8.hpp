#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strata {

/// The longest prefix of a text that is valid UTF-8.
struct Utf8Prefix {
  std::size_t bytes = 0;  ///< of whole characters
  /// What follows the prefix: nothing, a truncated character or an invalid byte.
  enum class Rest { kNothing, kCutShort, kInvalid } rest = Rest::kNothing;
};

/// Source: The Unicode Standard 15.0, table 3-7 (no overlong forms, no surrogates, up to U+10FFFF).
[[nodiscard]] Utf8Prefix utf8_prefix(std::string_view text);

/// Whether a byte of UTF-8 text is in a character that an earlier byte begins.
[[nodiscard]] inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

/// A character and its length in bytes.
struct Utf8Character {
  char32_t value = 0;
  std::size_t bytes = 0;
};

/// The first character. Pre: `text` begins with one whole UTF-8 character.
[[nodiscard]] inline Utf8Character first_character(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t lead = at(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  if (lead < 0xE0) {
    return {(lead & 0x1FU) << 6U | (at(1) & 0x3FU), 2};
  }
  if (lead < 0xF0) {
    return {(lead & 0x0FU) << 12U | (at(1) & 0x3FU) << 6U | (at(2) & 0x3FU), 3};
  }
  return {(lead & 0x07U) << 18U | (at(1) & 0x3FU) << 12U | (at(2) & 0x3FU) << 6U | (at(3) & 0x3FU),
          4};
}

void append_utf8(char32_t character, std::string& text);

/// A character in messages, as in 'é' (U+00E9).
[[nodiscard]] std::string character_text(char32_t character);

/// Why a text cannot be a name in a file of strata, as in "is not UTF-8 text"; empty where it can.
[[nodiscard]] std::string name_problem(std::string_view text);

/// A whole text in which control characters and invalid UTF-8 are \xNN; tabs and line breaks stay.
[[nodiscard]] std::string visible(std::string_view text);

/// A text from a file or a user, for one line on a terminal: control characters and invalid UTF-8
/// become \xNN, a line break \n, and the middle of a text of more than `most_bytes` is left out.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most_bytes = 200);

/// A message of this program that may hold such texts: as printable(), but tabs and line breaks
/// stay, and only lines of more than 1000 bytes are shortened.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// A whole text as printable() shows it, in double quotes, with quotes and backslashes escaped.
[[nodiscard]] std::string quoted_text(std::string_view text);

}  // namespace strata
