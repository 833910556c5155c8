#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::io {

/// The documents of a token stream, and which of its tokens are learned.
struct Documents {
  /// The end of each document, ascending; the last is the number of tokens.
  std::vector<std::int64_t> ends;
  /// The tokens that count as targets: begin and end of each run, ascending. Empty: all.
  std::vector<std::int64_t> counted;
  /// Whether they are pairs: an answer that is preferred, then one that is rejected.
  bool pairs = false;

  /// How many tokens count. Pre: there is a document.
  [[nodiscard]] std::int64_t counted_tokens() const;
  /// The document of a token. Pre: one has it.
  [[nodiscard]] std::int64_t index_of(std::int64_t token) const;
  [[nodiscard]] std::int64_t begin(std::int64_t document) const {
    return document == 0 ? 0 : ends[static_cast<std::size_t>(document) - 1];
  }
  [[nodiscard]] std::int64_t end(std::int64_t document) const {
    return ends[static_cast<std::size_t>(document)];
  }
  /// Whether a token counts as a target.
  [[nodiscard]] bool counts(std::int64_t token) const;
  /// Those of the tokens [first, first + tokens), counted from `first`; a document that goes on
  /// outside is cut.
  [[nodiscard]] Documents part(std::int64_t first, std::int64_t tokens) const;
  /// Appends those of tokens that begin at `first`. `masked`: not all tokens of both count.
  void add(const Documents& others, std::int64_t first, bool masked);
};

/// How the samples of a token stream are made.
enum class Packing {
  kBlocks,     ///< consecutive blocks of one context length
  kDocuments,  ///< a document each, or a part of a long one; the rest is padding
  kBestFit,    ///< several documents each, as many as fit
  kPairs       ///< the two documents of a pair each
};
constexpr auto enum_names(Packing) {
  return names_in_order("blocks", "documents", "best-fit", "pairs");
}

/// Consecutive tokens of one document in a sample: the inputs [first, first + inputs), each with
/// the next token as its target.
struct Piece {
  std::int64_t first = 0;
  std::int64_t inputs = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The pieces of each sample, in order; what they leave of a context is padding.
class PackedSamples {
 public:
  PackedSamples() = default;
  /// Documents longer than a context of `context` inputs are cut, but for pairs; those of one token
  /// have no target and are left out. Best fit: the longest pieces first, each into the fullest
  /// sample that has room for it. Pre: packing is not kBlocks; it is kPairs only for pairs. Source:
  /// Ding et al., "Fewer truncations improve language modeling", arXiv 2404.10830.
  PackedSamples(const Documents& documents, std::int64_t context, Packing packing);

  [[nodiscard]] std::int64_t samples() const { return std::ssize(ends_); }
  [[nodiscard]] std::span<const Piece> pieces(std::int64_t sample) const;
  /// Inputs of all samples that are not padding.
  [[nodiscard]] std::int64_t inputs() const { return inputs_; }

 private:
  std::vector<Piece> pieces_;
  /// The end of each sample's pieces.
  std::vector<std::int64_t> ends_;
  std::int64_t inputs_ = 0;
};

}  // namespace strata::io
