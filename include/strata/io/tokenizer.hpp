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

/// How text becomes tokens.
enum class TokenizerKind {
  kNone,   ///< unknown: the tokens came without their text
  kBytes,  ///< a token a byte
  kChars,  ///< a token a Unicode code point of the text that the data set was made from
  kGpt2    ///< byte pairs, with GPT-2's rules
};

constexpr auto enum_names(TokenizerKind) {
  return names_in_order("none", "bytes", "chars", "gpt2");
}

/// What a separator's own text, "<|endoftext|>", means to encode().
enum class Markers {
  kRecognised,  ///< the separator
  kAsText       ///< what its characters are
};

/// Turns text into token ids and back. All const members may be called from several threads at
/// once.
class Tokenizer {
 public:
  /// The one that a token data set was made with, from its master file or from a checkpoint's.
  /// Throws: Error(kData) where the data set does not know its tokenizer, or it is damaged.
  [[nodiscard]] static Tokenizer of(const DatasetInfo& info);

  [[nodiscard]] static Tokenizer bytes();
  /// Ids in the order given. Pre: no character twice.
  [[nodiscard]] static Tokenizer chars(std::vector<char32_t> characters);
  /// From GPT-2's encoder.json and vocab.bpe.
  /// Throws: Error(kData) where a file is malformed or they do not fit each other.
  [[nodiscard]] static Tokenizer gpt2(const std::filesystem::path& encoder,
                                      const std::filesystem::path& merges);
  /// From parts that were checked.
  explicit Tokenizer(std::unique_ptr<const TokenizerContents> contents);

  ~Tokenizer();
  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;

  [[nodiscard]] TokenizerKind kind() const;
  /// Number of ids; they count from 0.
  [[nodiscard]] std::int64_t vocabulary() const;
  /// The token that stands between documents; -1 where there is none.
  [[nodiscard]] std::int64_t separator() const;

  /// Throws: Error(kData) for a character outside the vocabulary, or text that is not UTF-8 where
  /// the tokenizer needs it.
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view text,
                                                 Markers markers = Markers::kRecognised) const;
  /// The ids' texts one after the other. One token's may be part of a UTF-8 character.
  /// Throws: Error(kData) for an id outside the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const;

  [[nodiscard]] const TokenizerContents& contents() const { return *contents_; }

 private:
  std::unique_ptr<const TokenizerContents> contents_;
};

}  // namespace strata::io
