#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/byte_pairs.hpp"
#include "tokenizer/sentence_pieces.hpp"
#include "tokenizer/split_words.hpp"
#include "tokenizer/text_changes.hpp"

namespace strata::io {

/// A longer word, or run of white space, is refused.
inline constexpr std::size_t kLongestWord = std::size_t{16} << 20;

/// Encodes a document piece by piece.
class TextEncoder {
 public:
  TextEncoder() = default;
  virtual ~TextEncoder() = default;
  TextEncoder(const TextEncoder&) = delete;
  TextEncoder& operator=(const TextEncoder&) = delete;

  /// Whether encode() needs valid UTF-8 in whole characters.
  [[nodiscard]] virtual bool needs_utf8() const = 0;
  /// Appends the ids of all tokens that further text cannot change; returns the bytes encoded. At
  /// the end of a document, encodes all of the text.
  virtual std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) = 0;
};

class BytesEncoder : public TextEncoder {
 public:
  [[nodiscard]] bool needs_utf8() const override { return false; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;
};

/// The ids are code points.
class CodePointsEncoder : public TextEncoder {
 public:
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

  /// Those of all texts since the last call, ascending.
  [[nodiscard]] std::vector<std::uint32_t> take_characters();

 private:
  std::vector<bool> seen_;  ///< of each code point
};

class BytePairsEncoder : public TextEncoder {
 public:
  /// Pre: `pairs` outlives this.
  explicit BytePairsEncoder(const BytePairs& pairs)
      : pairs_(pairs), words_(pairs), steps_(pairs.splits().begin(), pairs.splits().end()) {}
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override {
    const std::size_t used = split(0, text, end, ids);
    if (end != End::kNotYet) {
      // What one document may cost does not depend on those before it.
      std::ranges::for_each(steps_, &Search::begin_document);
    }
    return used;
  }

 private:
  /// Cuts a text by the steps from the given one on, and encodes the words.
  std::size_t split(std::size_t step, std::string_view text, End end,
                    std::vector<std::uint32_t>& ids);

  const BytePairs& pairs_;
  CachedBytePairs words_;
  std::vector<Search> steps_;
};

/// Brings text into the normalization form NFC.
/// Source: Unicode Standard Annex 15, Unicode Normalization Forms.
class NfcEncoder : public TextEncoder {
 public:
  explicit NfcEncoder(std::unique_ptr<TextEncoder> normalized)
      : normalized_(std::move(normalized)) {}
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  std::unique_ptr<TextEncoder> normalized_;
  std::string waiting_;  ///< normalized, not yet encoded
};

/// Unicode's normalization forms.
enum class Form { kNfc, kNfd, kNfkc, kNfkd };
[[nodiscard]] std::string in_form(std::string_view text, Form form);

[[nodiscard]] bool is_mark(char32_t character);
/// Property White_Space, Unicode 15.0.
[[nodiscard]] bool is_space(char32_t character);
/// Whether a character is visible in every normalization form: ASCII's, letters, numbers and
/// punctuation.
[[nodiscard]] bool is_solid(char32_t character);
/// Where the last character of a text begins. Pre: the text is not empty.
[[nodiscard]] std::size_t last_character(std::string_view text);
/// Where the white space at the end of a text begins, from `begin` on.
[[nodiscard]] std::size_t end_without_space(std::string_view text, std::size_t begin);

/// Encodes changed text.
class ChangingEncoder : public TextEncoder {
 public:
  ChangingEncoder(std::vector<TextChange> changes, std::unique_ptr<TextEncoder> changed)
      : changer_(std::move(changes)), changed_(std::move(changed)) {}
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  TextChanger changer_;
  std::unique_ptr<TextEncoder> changed_;
  std::string waiting_;  ///< changed, not yet encoded
};

/// Encodes a text in pieces that no token of the model crosses.
class SentencePieceEncoder : public TextEncoder {
 public:
  /// Pre: `pieces` outlives this.
  explicit SentencePieceEncoder(const SentencePieces& pieces) : pieces_(pieces) {}
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  const SentencePieces& pieces_;
};

/// Encodes the texts of added tokens as these tokens: the leftmost, of several there the longest.
class AddedTokensEncoder : public TextEncoder {
 public:
  /// With Markers::kAsText special tokens are text.
  AddedTokensEncoder(std::unique_ptr<TextEncoder> between, std::vector<AddedToken> tokens,
                     Markers markers);
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  struct Found {
    std::size_t at = std::string_view::npos;
    const AddedToken* token = nullptr;
  };
  [[nodiscard]] Found find_in(std::string_view text, std::size_t from) const;
  /// Whether letters, digits or _ touch the text from `begin` to `end`.
  [[nodiscard]] bool is_touched(std::string_view text, std::size_t begin, std::size_t end) const;

  std::unique_ptr<TextEncoder> between_;
  std::vector<AddedToken> tokens_;
  Markers markers_;
  std::unordered_map<std::string_view, const AddedToken*> by_text_;  ///< into tokens_
  std::array<std::vector<std::size_t>, 256> lengths_;  ///< by first byte, the longest first
  std::size_t longest_ = 1;
  bool strips_left_ = false;
  // Of what was encoded before the next text.
  char32_t last_ = 0;        ///< its last character; 0 at the begin
  std::size_t taken_ = 0;    ///< bytes of the next text that a token has taken
  std::size_t ignored_ = 0;  ///< bytes of the next text that belong to a token left as text
};

}  // namespace strata::io
