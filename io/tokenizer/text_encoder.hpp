#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "tokenizer/byte_pairs.hpp"
#include "tokenizer/gpt2_words.hpp"

namespace strata::io {

/// Turns a document's text into ids piece by piece.
class TextEncoder {
 public:
  TextEncoder() = default;
  virtual ~TextEncoder() = default;
  TextEncoder(const TextEncoder&) = delete;
  TextEncoder& operator=(const TextEncoder&) = delete;

  /// Whether text must be UTF-8, and encode() is given whole characters only.
  [[nodiscard]] virtual bool needs_utf8() const = 0;
  /// Appends the ids of tokens that no further text can change; returns how many bytes they are.
  /// All of the text is encoded where its end is reached.
  virtual std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) = 0;
};

class BytesEncoder : public TextEncoder {
 public:
  [[nodiscard]] bool needs_utf8() const override { return false; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;
};

/// Numbers characters as they first appear.
class GrowingCharsEncoder : public TextEncoder {
 public:
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

  /// The characters in order of their code points.
  [[nodiscard]] std::vector<char32_t> sorted() const;
  /// What becomes of each id when the characters are numbered in that order.
  [[nodiscard]] std::vector<std::uint32_t> renumbering() const;

 private:
  [[nodiscard]] std::uint32_t id_of(char32_t character);

  std::vector<char32_t> characters_;  ///< by id
  /// Id and one of each code point, by blocks of 256; a block that was never met is empty.
  std::vector<std::vector<std::uint32_t>> blocks_;
};

class Gpt2Encoder : public TextEncoder {
 public:
  /// Pre: `pairs` outlives this.
  explicit Gpt2Encoder(const BytePairs& pairs) : words_(pairs) {}
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  CachedBytePairs words_;
};

}  // namespace strata::io
