#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "tokenizer/byte_pairs.hpp"
#include "tokenizer/sentence_pieces.hpp"
#include "tokenizer/split_words.hpp"

namespace strata::io {

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

/// Assigns ids to characters in order of first occurrence.
class GrowingCharsEncoder : public TextEncoder {
 public:
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

  /// The characters sorted by code point.
  [[nodiscard]] std::vector<char32_t> sorted() const;
  /// Maps each id to its id in that order.
  [[nodiscard]] std::vector<std::uint32_t> renumbering() const;

 private:
  [[nodiscard]] std::uint32_t id_of(char32_t character);

  std::vector<char32_t> characters_;  ///< by id
  /// Id plus one of each code point, in blocks of 256; unused blocks are empty.
  std::vector<std::vector<std::uint32_t>> blocks_;
};

class BytePairsEncoder : public TextEncoder {
 public:
  /// Pre: `pairs` outlives this.
  explicit BytePairsEncoder(const BytePairs& pairs)
      : words_(pairs), pattern_(pairs.tables().pattern) {}
  [[nodiscard]] bool needs_utf8() const override { return true; }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  CachedBytePairs words_;
  SplitPattern pattern_;
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

/// The text of a token that stands for no text.
struct Marker {
  std::string text;
  std::uint32_t id = 0;
};

/// Encodes the texts of markers as their tokens: the leftmost, of several there the longest.
class MarkersEncoder : public TextEncoder {
 public:
  MarkersEncoder(std::unique_ptr<TextEncoder> between, std::vector<Marker> markers);
  [[nodiscard]] bool needs_utf8() const override { return between_->needs_utf8(); }
  std::size_t encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) override;

 private:
  struct Found {
    std::size_t at = std::string_view::npos;
    const Marker* marker = nullptr;
  };
  [[nodiscard]] Found find_in(std::string_view text) const;

  std::unique_ptr<TextEncoder> between_;
  std::vector<Marker> markers_;  ///< the longest first
  std::string first_bytes_;
};

}  // namespace strata::io
