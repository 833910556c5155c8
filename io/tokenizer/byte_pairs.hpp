#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/split_words.hpp"

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

/// The vocabulary and merges of a byte-pair encoding.
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
};

/// Byte-pair encoding of single words.
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

  /// Pre: every byte is a token, and so is each merge's result.
  /// Throws: Error(kData) for an expression that Expression refuses.
  explicit BytePairs(BytePairTables tables);
  // words_ holds views of tables_.tokens.
  BytePairs(const BytePairs&) = delete;
  BytePairs& operator=(const BytePairs&) = delete;

  [[nodiscard]] const BytePairTables& tables() const { return tables_; }
  /// The compiled expressions of tables().splits.
  [[nodiscard]] const std::vector<Expression>& splits() const { return splits_; }

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
  /// Pushes the merge of symbol `at` and its successor onto the heap, where there is one.
  void push_candidate(Scratch& scratch, std::int32_t at) const;

  BytePairTables tables_;
  std::vector<Expression> splits_;
  std::array<std::uint32_t, 256> byte_ids_{};
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
