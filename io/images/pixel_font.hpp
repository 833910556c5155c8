#pragma once

#include <array>
#include <cstdint>
#include <utility>

namespace strata::io {

inline constexpr std::int64_t kGlyphWidth = 5;
inline constexpr std::int64_t kGlyphHeight = 7;

/// Rows of a character from top to bottom; of five bits the highest is leftmost.
using Glyph = std::array<std::uint8_t, kGlyphHeight>;

/// Digits, capital letters (also for small letters) and the punctuation of names; a question mark
/// for all others.
[[nodiscard]] constexpr Glyph glyph_of(char character) {
  constexpr std::array<Glyph, 10> kDigits{{{14, 17, 19, 21, 25, 17, 14},
                                           {4, 12, 4, 4, 4, 4, 14},
                                           {14, 17, 1, 2, 4, 8, 31},
                                           {31, 2, 4, 2, 1, 17, 14},
                                           {2, 6, 10, 18, 31, 2, 2},
                                           {31, 16, 30, 1, 1, 17, 14},
                                           {6, 8, 16, 30, 17, 17, 14},
                                           {31, 1, 2, 4, 8, 8, 8},
                                           {14, 17, 17, 14, 17, 17, 14},
                                           {14, 17, 17, 15, 1, 2, 12}}};
  constexpr std::array<Glyph, 26> kLetters{
      {{14, 17, 17, 31, 17, 17, 17}, {30, 17, 17, 30, 17, 17, 30}, {14, 17, 16, 16, 16, 17, 14},
       {28, 18, 17, 17, 17, 18, 28}, {31, 16, 16, 30, 16, 16, 31}, {31, 16, 16, 30, 16, 16, 16},
       {14, 17, 16, 23, 17, 17, 15}, {17, 17, 17, 31, 17, 17, 17}, {14, 4, 4, 4, 4, 4, 14},
       {7, 2, 2, 2, 2, 18, 12},      {17, 18, 20, 24, 20, 18, 17}, {16, 16, 16, 16, 16, 16, 31},
       {17, 27, 21, 21, 17, 17, 17}, {17, 17, 25, 21, 19, 17, 17}, {14, 17, 17, 17, 17, 17, 14},
       {30, 17, 17, 30, 16, 16, 16}, {14, 17, 17, 17, 21, 18, 13}, {30, 17, 17, 30, 20, 18, 17},
       {15, 16, 16, 14, 1, 1, 30},   {31, 4, 4, 4, 4, 4, 4},       {17, 17, 17, 17, 17, 17, 14},
       {17, 17, 17, 17, 17, 10, 4},  {17, 17, 17, 21, 21, 21, 10}, {17, 17, 10, 4, 10, 17, 17},
       {17, 17, 17, 10, 4, 4, 4},    {31, 1, 2, 4, 8, 16, 31}}};
  if (character >= '0' && character <= '9') {
    return kDigits[static_cast<std::size_t>(character - '0')];
  }
  if (character >= 'a' && character <= 'z') {
    return kLetters[static_cast<std::size_t>(character - 'a')];
  }
  if (character >= 'A' && character <= 'Z') {
    return kLetters[static_cast<std::size_t>(character - 'A')];
  }
  constexpr std::pair<char, Glyph> kSigns[] = {
      {' ', {0, 0, 0, 0, 0, 0, 0}},  {'-', {0, 0, 0, 31, 0, 0, 0}},  {'+', {0, 4, 4, 31, 4, 4, 0}},
      {'_', {0, 0, 0, 0, 0, 0, 31}}, {'.', {0, 0, 0, 0, 0, 12, 12}}, {'/', {0, 1, 2, 4, 8, 16, 0}}};
  for (const auto& [sign, glyph] : kSigns) {
    if (sign == character) {
      return glyph;
    }
  }
  return {14, 17, 1, 2, 4, 0, 4};
}

}  // namespace strata::io
