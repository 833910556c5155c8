#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/split_words.hpp"
#include "tokenizer/text_changes.hpp"

namespace strata::io {

/// Which merge of a word is next. Orders differ only where new pairs come before old ones.
enum class MergeOrder {
  kAllOfPair,    ///< all places of the first pair in the list, as GPT-2's encoder does it
  kListed,       ///< the leftmost place of the first pair in the list, as in tokenizer.json
  kLowestResult  ///< the leftmost place where the result has the lowest id, as tiktoken does it
};
constexpr auto enum_names(MergeOrder) {
  return names_in_order("all-of-pair", "listed", "lowest-result");
}

/// Whether a word that is a token becomes it without merges.
enum class WholeWords { kNo, kYes };

/// How text is changed before it is split.
enum class Normalizer { kNone, kNfc };

/// How a tokenizer.json whose tokens are of characters uses them, mostly one that was converted
/// from a model of SentencePiece.
struct CharacterRules {
  /// Its normalizer, pre_tokenizer and decoder, and of its model what is no table: JSON.
  std::string text;
  std::vector<TextChange> changes;        ///< before words are split
  std::vector<TextChange> later_changes;  ///< after added tokens were found in changed text
  std::int64_t unknown = -1;   ///< the token of characters without one; -1: they have bytes
  bool fuses_unknown = false;  ///< whether characters without tokens in a row are one
  bool has_bytes = false;      ///< whether their bytes, as in <0x0A>, are tokens instead
  // How tokens become text.
  std::string space;          ///< what stands for a space; empty for nothing
  bool joins_bytes = false;   ///< whether tokens as <0x0A> become bytes
  bool drops_spaces = false;  ///< whether the first token loses its spaces
  std::int64_t dropped = 0;   ///< spaces at the begin of a text that are left out

  /// The text of a token; `is_first` where it begins a text.
  [[nodiscard]] std::string text_of(std::string_view token, bool is_first) const;
};

/// The byte of a token that is written as <0x0A>; -1 for another token.
[[nodiscard]] int byte_of(std::string_view token);

/// The vocabulary and merges of a byte-pair encoding, or the vocabulary of a unigram model.
struct BytePairTables {
  /// Bytes of each token, by id; empty for an id that no token has.
  std::vector<std::string> tokens;
  /// Pairs of ids to merge, by descending priority.
  std::vector<std::array<std::uint32_t, 2>> merges;
  /// The token between documents; -1 without one.
  std::int64_t separator = -1;
  /// By id; their texts are among the tokens.
  std::vector<AddedToken> added;
  DocumentFrame frame;
  Normalizer normalizer = Normalizer::kNone;
  std::vector<SplitStep> splits{{std::string(kGpt2Expression)}};
  MergeOrder order = MergeOrder::kAllOfPair;
  WholeWords whole_words = WholeWords::kNo;
  std::optional<CharacterRules> characters;  ///< none for tokens of bytes
  std::vector<double> scores;  ///< of a unigram model: log-probabilities of its tokens
};

/// Encodes words with a unigram model: the most probable sequence of its tokens, as Hugging Face's
/// library finds it. Special tokens stand for no text.
/// Source: Kudo, "Subword regularization: improving neural network translation models with multiple
/// subword candidates", ACL 2018.
class Unigram {
 public:
  /// Pre: `tables` has scores, and an unknown token; it outlives this.
  explicit Unigram(const BytePairTables& tables);
  void encode(std::string_view word, std::vector<std::uint32_t>& ids) const;

 private:
  struct Piece {
    std::string_view text;
    std::uint32_t id = 0;
    double score = 0.0;
  };
  const CharacterRules& rules_;
  std::vector<Piece> pieces_;                  ///< by text
  std::array<std::uint32_t, 256> byte_ids_{};  ///< if there are tokens of bytes
  double unknown_score_ = 0.0;
};

/// Byte-pair encoding of single words, of bytes or of characters, or a unigram model instead.
/// Source: Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units",
/// ACL 2016; over bytes as in Radford et al., "Language models are unsupervised multitask
/// learners", 2019.
class BytePairs {
 public:
  /// Buffers reused between calls of one thread.
  struct Scratch {
    struct Symbol {
      std::uint32_t id = 0;
      std::int32_t previous = -1;
      std::int32_t next = -1;
    };
    /// A possible merge; `at` is its left symbol.
    struct Candidate {
      std::uint32_t rank = 0;
      std::int32_t at = 0;
      std::uint32_t left = 0;
      std::uint32_t right = 0;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<std::int32_t> merged;
  };

  /// Pre: every byte is a token or there are rules for characters, and each merge's result is one.
  /// Throws: Error(kData) for an expression that Expression refuses.
  explicit BytePairs(BytePairTables tables);
  // words_ holds views of tables_.tokens.
  BytePairs(const BytePairs&) = delete;
  BytePairs& operator=(const BytePairs&) = delete;

  [[nodiscard]] const BytePairTables& tables() const { return tables_; }
  /// The compiled expressions of tables().splits.
  [[nodiscard]] const std::vector<Expression>& splits() const { return splits_; }

  /// The bytes of the first of the words that a text can be cut into so that its ids stay; 0 where
  /// what follows decides.
  [[nodiscard]] std::size_t word_of(std::string_view text, End end) const;
  /// Appends the ids of a word's tokens. Pre: the word is shorter than 2 GiB.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::uint32_t rank = 0;
    std::uint32_t result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  /// The slot of a pair, or the free slot where it would be inserted.
  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const;
  /// Fills the symbols of a word, its bytes or characters.
  void push_symbols(std::string_view word, Scratch& scratch) const;
  /// Pushes the merge of symbol `at` and its successor onto the heap, where there is one.
  void push_candidate(Scratch& scratch, std::int32_t at) const;

  BytePairTables tables_;
  std::vector<Expression> splits_;
  std::optional<Unigram> unigram_;
  std::array<std::uint32_t, 256> byte_ids_{};
  bool can_cut_ = false;                          ///< whether word_of() finds words
  std::unordered_set<std::uint64_t> neighbours_;  ///< characters beside each other in tokens
  std::unordered_map<std::string_view, std::uint32_t> words_;  ///< into tables_.tokens
  std::vector<Merge> table_;  ///< open addressing; the size is a power of two
};

/// Byte-pair encoding with a cache of words, for one thread.
class CachedBytePairs {
 public:
  /// Pre: `pairs` outlives this.
  explicit CachedBytePairs(const BytePairs& pairs) : pairs_(pairs) {}

  void encode(std::string_view word, std::vector<std::uint32_t>& ids);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const;
  };
  struct Entry {
    std::uint32_t first = 0;  ///< index in ids_
    std::uint32_t count = 0;
  };

  const BytePairs& pairs_;
  BytePairs::Scratch scratch_;
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries_;
  std::vector<std::uint32_t> ids_;
};

}  // namespace strata::io
