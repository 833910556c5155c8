#include "tokenizer/split_words.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include <utf8proc.h>

#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

enum class Kind : std::uint8_t { kLetter, kNumber, kSpace, kOther };

// Property White_Space, Unicode 15.0.
bool is_space(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

Kind kind_in_unicode(char32_t character) {
  if (is_space(character)) {
    return Kind::kSpace;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::kNumber;
    default:
      return Kind::kOther;
  }
}

constexpr std::size_t kAscii = 128;

constexpr std::array<Kind, kAscii> kAsciiKinds = [] {
  std::array<Kind, kAscii> kinds{};
  for (std::size_t i = 0; i < kAscii; ++i) {
    const bool letter = (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z');
    const bool number = i >= '0' && i <= '9';
    const bool space = i == ' ' || (i >= '\t' && i <= '\r');
    kinds[i] = letter   ? Kind::kLetter
               : number ? Kind::kNumber
               : space  ? Kind::kSpace
                        : Kind::kOther;
  }
  return kinds;
}();

struct Next {
  Kind kind = Kind::kOther;
  std::size_t bytes = 1;
};

Next next_of(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < kAscii) {
    return {kAsciiKinds[byte], 1};
  }
  const Utf8Character character = first_character(text.substr(at));
  return {kind_in_unicode(character.value), character.bytes};
}

// Length of the contraction's ending at the start of the text; 0 without one.
std::size_t contraction(std::string_view text) {
  constexpr std::array<std::string_view, 7> kEndings{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (const std::string_view ending : kEndings) {
    if (text.starts_with(ending)) {
      return ending.size();
    }
  }
  return 0;
}

// The same for both cases, and for U+017F, which is an 's' without case. The text has 3 bytes, or
// its document ends.
std::size_t contraction_of_any_case(std::string_view text) {
  constexpr std::string_view kLongS = "'\xC5\xBF";
  std::string lower(text.substr(0, 3));
  for (char& character : lower) {
    character =
        character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a') : character;
  }
  return text.starts_with(kLongS) ? kLongS.size() : contraction(lower);
}

bool ends_line(char character) {
  return character == '\r' || character == '\n';
}

// The end of the run of one kind that includes the character at `at`.
std::size_t end_of_run(std::string_view text, std::size_t at, Kind kind) {
  while (at < text.size()) {
    const Next next = next_of(text, at);
    if (next.kind != kind) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

std::size_t white_space(std::string_view text, End end) {
  std::size_t last = 0;  // where the last white-space character begins
  std::size_t at = 0;
  while (at < text.size()) {
    const Next next = next_of(text, at);
    if (next.kind != Kind::kSpace) {
      return last > 0 ? last : at;
    }
    last = at;
    at += next.bytes;
  }
  return end == End::kReached ? at : 0;
}

}  // namespace

std::size_t first_gpt2_word(std::string_view text, End end) {
  constexpr std::size_t kLongestContraction = 3;
  if (text.empty()) {
    return 0;
  }
  if (text[0] == '\'') {
    if (text.size() < kLongestContraction && end == End::kNotYet) {
      return 0;
    }
    const std::size_t bytes = contraction(text);
    if (bytes > 0) {
      return bytes;
    }
  }
  std::size_t at = text[0] == ' ' ? 1 : 0;
  if (at == text.size()) {
    return end == End::kReached ? at : 0;
  }
  const Kind kind = next_of(text, at).kind;
  if (kind == Kind::kSpace) {
    return white_space(text, end);
  }
  while (at < text.size()) {
    const Next next = next_of(text, at);
    if (next.kind != kind) {
      return at;
    }
    at += next.bytes;
  }
  return end == End::kReached ? at : 0;
}

std::size_t first_llama3_word(std::string_view text, End end) {
  constexpr std::size_t kLongestContraction = 3;
  constexpr int kMostNumbers = 3;
  if (text.empty()) {
    return 0;
  }
  if (text[0] == '\'') {
    if (text.size() < kLongestContraction && end == End::kNotYet) {
      return 0;
    }
    const std::size_t bytes = contraction_of_any_case(text);
    if (bytes > 0) {
      return bytes;
    }
  }
  // What further text could prolong is no word yet.
  const auto word = [&](std::size_t bytes) {
    return bytes == text.size() && end == End::kNotYet ? 0 : bytes;
  };
  const Next first = next_of(text, 0);
  if (first.kind == Kind::kNumber) {
    std::size_t at = first.bytes;
    for (int numbers = 1; numbers < kMostNumbers; ++numbers) {
      if (at == text.size()) {
        return word(at);
      }
      const Next next = next_of(text, at);
      if (next.kind != Kind::kNumber) {
        break;
      }
      at += next.bytes;
    }
    return at;
  }
  if (first.kind == Kind::kLetter) {
    return word(end_of_run(text, 0, Kind::kLetter));
  }
  if (first.bytes == text.size() && end == End::kNotYet) {
    return 0;
  }
  if (first.bytes < text.size()) {
    const Kind second = next_of(text, first.bytes).kind;
    if (second == Kind::kLetter && !ends_line(text[0])) {
      return word(end_of_run(text, first.bytes, Kind::kLetter));
    }
    if (first.kind == Kind::kOther || (text[0] == ' ' && second == Kind::kOther)) {
      std::size_t at = end_of_run(text, text[0] == ' ' ? 1 : 0, Kind::kOther);
      while (at < text.size() && ends_line(text[at])) {
        ++at;
      }
      return word(at);
    }
  }
  if (first.kind == Kind::kOther) {
    return first.bytes;
  }
  const std::size_t run = end_of_run(text, 0, Kind::kSpace);
  if (word(run) == 0) {
    return 0;
  }
  const std::size_t last_line_end = text.substr(0, run).find_last_of("\r\n");
  return last_line_end != std::string_view::npos ? last_line_end + 1 : white_space(text, end);
}

}  // namespace strata::io
