#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/core/enum_names.hpp"

namespace strata::io {

struct DatasetInfo;
struct TokenizerContents;

/// Kinds of tokenizers.
enum class TokenizerKind {
  kNone,            ///< unknown: the tokens were imported without their text
  kBytes,           ///< one token per byte
  kChars,           ///< one token per Unicode code point that occurs in the imported text
  kGpt2,            ///< GPT-2's byte-pair encoding
  kBytePairs,       ///< byte pairs from a tokenizer.json or a file of ranks
  kSentencePiece,   ///< a model of the library SentencePiece
  kCharacterPairs,  ///< byte pairs whose tokens are of characters, from a tokenizer.json
  kUnigram          ///< a unigram model from a tokenizer.json
};
constexpr auto enum_names(TokenizerKind) {
  return names_in_order("none", "bytes", "chars", "gpt2", "byte-pairs", "sentencepiece",
                        "character-pairs", "unigram");
}

/// How encode() treats the texts of special tokens, such as "<|endoftext|>".
enum class Markers {
  kRecognised,  ///< as these tokens
  kAsText       ///< as plain text
};

/// The tokens that a tokenizer puts around a document, as the post_processor of a tokenizer.json
/// or a tokenizer_config.json beside it or SentencePiece's model says.
struct DocumentFrame {
  std::vector<std::uint32_t> before;
  std::vector<std::uint32_t> after;

  [[nodiscard]] bool empty() const { return before.empty() && after.empty(); }
  friend bool operator==(const DocumentFrame&, const DocumentFrame&) = default;
};

/// Whether the tokens that decode() is given follow others.
enum class Continues { kNo, kYes };

/// Converts text to token ids and back. Const members are thread-safe.
class Tokenizer {
 public:
  /// The tokenizer stored in the master file of a data set or checkpoint.
  /// Throws: Error(kData) where none is stored or the stored one is damaged.
  [[nodiscard]] static Tokenizer of(const DatasetInfo& info);

  [[nodiscard]] static Tokenizer bytes();
  /// One token per character, with ids in the order given. Pre: the characters are distinct.
  [[nodiscard]] static Tokenizer chars(std::vector<char32_t> characters);
  /// From GPT-2's encoder.json and vocab.bpe, and tokens that files beside the encoder add.
  /// Throws: Error(kData) where a file is malformed or the files do not match.
  [[nodiscard]] static Tokenizer gpt2(const std::filesystem::path& encoder,
                                      const std::filesystem::path& merges);
  /// From a Hugging Face tokenizer.json of byte pairs or a unigram model, a file of ranks as
  /// tiktoken reads it, or a model of SentencePiece, whichever the file is; a tokenizer.json of
  /// GPT-2's is that of gpt2(). Tokens that added_tokens.json and tokenizer_config.json beside the
  /// file add belong to it. Only ranks need `pattern`, the name of a published expression (gpt2,
  /// llama3, o200k) or another expression that splits text into words, and get the special tokens
  /// of the published file with that number of ranks, else "<|endoftext|>". Throws: Error(kData)
  /// where the file is malformed or not supported, Error(kUsage) where the pattern is missing or
  /// not wanted, or this build lacks SentencePiece.
  [[nodiscard]] static Tokenizer from_file(const std::filesystem::path& path,
                                           const std::string& pattern = "");
  /// Pre: the contents were validated.
  explicit Tokenizer(std::unique_ptr<const TokenizerContents> contents);

  ~Tokenizer();
  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;

  [[nodiscard]] TokenizerKind kind() const;
  /// Number of token ids, which start at 0.
  [[nodiscard]] std::int64_t vocabulary() const;
  /// Number of tokens that are found in a text before it is split.
  [[nodiscard]] std::int64_t added_tokens() const;
  /// The token between documents; -1 without one.
  [[nodiscard]] std::int64_t separator() const;
  /// What models expect around a document, and at the begin of a prompt; encode() leaves it out.
  [[nodiscard]] const DocumentFrame& frame() const;

  /// Throws: Error(kData) for a character outside the vocabulary, and for invalid UTF-8 where the
  /// tokenizer needs UTF-8.
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view text,
                                                 Markers markers = Markers::kRecognised) const;
  /// Concatenates the tokens' texts. The text of one token may be part of a UTF-8 character. A
  /// space that a tokenizer puts before a text is left out unless the tokens continue one.
  /// Throws: Error(kData) for an id outside the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids,
                                   Continues continues = Continues::kNo) const;

  [[nodiscard]] const TokenizerContents& contents() const { return *contents_; }

 private:
  std::unique_ptr<const TokenizerContents> contents_;
};

/// The ids of a text that begins a document, after DocumentFrame::before, which the text may spell
/// out; without ids and a frame the separator, if there is one.
[[nodiscard]] std::vector<std::int64_t> begin_document(const Tokenizer& tokenizer,
                                                       std::vector<std::int64_t> ids);

/// XXH3 of kind and tables; equal for equal tokenizers.
[[nodiscard]] std::uint64_t tokenizer_checksum(const Tokenizer& tokenizer);

/// The text of a value such as "bos_token" of a tokenizer_config.json: itself, or the "content" of
/// an object; empty where it is neither.
[[nodiscard]] std::string token_text(const nlohmann::json& value);

/// Writes a tokenizer in the form that other programs read: byte pairs (also of kinds kGpt2 and
/// kBytes) and unigram models as DIRECTORY/tokenizer.json, SentencePiece's model as
/// DIRECTORY/tokenizer.model with its added_tokens.json, and beside either a tokenizer_config.json.
/// Returns the files; none for characters, which have no such form. Replaces older files. Throws:
/// FileSystemError(kData).
std::vector<std::filesystem::path> write_tokenizer_files(const Tokenizer& tokenizer,
                                                         const std::filesystem::path& directory);

}  // namespace strata::io
