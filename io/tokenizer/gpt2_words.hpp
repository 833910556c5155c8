#pragma once

#include <cstddef>
#include <string_view>

namespace strata::io {

/// Whether a piece of text is the last of its document.
enum class End { kNotYet, kReached };

/// Length in bytes of the first word of a text in GPT-2's pre-tokenization: a
/// contraction's ending ('s 't 're 've 'm 'll 'd); letters, numbers or other characters, each with
/// at most one space before them; or white space, of which the last character is left to the next
/// word. 0 for an empty text and where the result depends on text that is not there yet.
/// Letters and numbers are Unicode's categories L and N, white space its property White_Space.
/// Pre: whole UTF-8 characters.
/// Source: Radford et al., "Language models are unsupervised multitask learners", 2019, and the
/// expression 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ of its
/// published encoder.
[[nodiscard]] std::size_t first_word(std::string_view text, End end);

}  // namespace strata::io
