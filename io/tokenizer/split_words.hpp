#pragma once

#include <cstddef>
#include <string_view>

#include "strata/io/tokenizer.hpp"

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
/// expression kGpt2Expression of its published encoder.
[[nodiscard]] std::size_t first_gpt2_word(std::string_view text, End end);

/// The same in Llama 3's pre-tokenization: contractions also in upper case; letters with at most
/// one other character before them that is no number and no line end; at most three numbers; other
/// characters with the line ends after them; white space up to its last line end.
/// Source: Grattafiori et al., "The Llama 3 herd of models", 2024, and the expression
/// kLlama3Expression of its published tokenizer.
[[nodiscard]] std::size_t first_llama3_word(std::string_view text, End end);

[[nodiscard]] inline std::size_t first_word(std::string_view text, End end,
                                            SplitPattern pattern = SplitPattern::kGpt2) {
  return pattern == SplitPattern::kGpt2 ? first_gpt2_word(text, end) : first_llama3_word(text, end);
}

/// The expressions as tokenizer.json files spell them.
inline constexpr std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace strata::io
