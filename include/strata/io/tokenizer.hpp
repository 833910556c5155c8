#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::io {

struct DatasetInfo;
struct TokenizerContents;

/// Kinds of tokenizers.
enum class TokenizerKind {
  kNone,   ///< unknown: the tokens were imported without their text
  kBytes,  ///< one token per byte
  kChars,  ///< one token per Unicode code point that occurs in the imported text
  kGpt2    ///< GPT-2's byte-pair encoding
};
constexpr auto enum_names(TokenizerKind) {
  return names_in_order("none", "bytes", "chars", "gpt2");
}

/// How encode() treats the separator's text, "<|endoftext|>".
enum class Markers {
  kRecognised,  ///< as the separator token
  kAsText       ///< as plain text
};

/// Converts text to token ids and back. Const members are thread-safe.
class Tokenizer {
 public:
  /// The tokenizer stored in the master file of a data set or checkpoint.
  /// Throws: Error(kData) where none is stored or the stored one is damaged.
  [[nodiscard]] static Tokenizer of(const DatasetInfo& info);

  [[nodiscard]] static Tokenizer bytes();
  /// One token per character, with ids in the order given. Pre: the characters are distinct.
  [[nodiscard]] static Tokenizer chars(std::vector<char32_t> characters);
  /// From GPT-2's encoder.json and vocab.bpe.
  /// Throws: Error(kData) where a file is malformed or the files do not match.
  [[nodiscard]] static Tokenizer gpt2(const std::filesystem::path& encoder,
                                      const std::filesystem::path& merges);
  /// Pre: the contents were validated.
  explicit Tokenizer(std::unique_ptr<const TokenizerContents> contents);

  ~Tokenizer();
  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;

  [[nodiscard]] TokenizerKind kind() const;
  /// Number of token ids, which start at 0.
  [[nodiscard]] std::int64_t vocabulary() const;
  /// The token between documents; -1 without one.
  [[nodiscard]] std::int64_t separator() const;

  /// Throws: Error(kData) for a character outside the vocabulary, and for invalid UTF-8 where the
  /// tokenizer needs UTF-8.
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view text,
                                                 Markers markers = Markers::kRecognised) const;
  /// Concatenates the tokens' texts. The text of one token may be part of a UTF-8 character.
  /// Throws: Error(kData) for an id outside the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const;

  [[nodiscard]] const TokenizerContents& contents() const { return *contents_; }

 private:
  std::unique_ptr<const TokenizerContents> contents_;
};

}  // namespace strata::io
