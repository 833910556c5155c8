#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "strata/grid/grid.hpp"
#include "strata/io/documents.hpp"
#include "strata/io/import.hpp"

namespace strata::io {

/// How many documents there were, and what became of those that were not taken as they are.
struct DocumentCounts {
  std::int64_t documents = 0;
  std::int64_t repeated = 0;
  std::int64_t too_short = 0;
  std::int64_t too_long = 0;
  std::int64_t cut = 0;
  std::int64_t longer = 0;  ///< than the most tokens

  void add(const DocumentCounts& others);
};

/// Chooses, from the texts of documents in file order, which are imported, and which of these are
/// held out for the test split. One chooses in each piece of the input, and one again from what
/// they took.
class DocumentFilter {
 public:
  explicit DocumentFilter(const DocumentRules& rules) : rules_(rules) {}

  /// Whether the next document is imported.
  [[nodiscard]] bool takes(std::string_view text);
  /// The hashes of the texts that were taken, where the rules ask for them.
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  [[nodiscard]] const DocumentCounts& counts() const { return counts_; }

  /// Adds what became of the documents of a piece.
  void add(const DocumentCounts& counts) { counts_.add(counts); }
  /// Whether the next document that a piece took is imported.
  [[nodiscard]] bool takes_of_piece(std::uint64_t hash);
  /// The next document was cut to rules().max_tokens.
  void count_cut() { ++counts_.cut; }
  /// The next document has more tokens and is left out.
  void leave_out_long() {
    ++counts_.documents;
    ++counts_.longer;
  }
  /// Whether each of the documents that were taken is held out; empty where rules().held_out is 0.
  [[nodiscard]] const std::vector<bool>& held_out() const { return held_out_; }
  [[nodiscard]] const DocumentRules& rules() const { return rules_; }
  /// How many documents were left out or cut and why, a sentence each.
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  /// Whether no text of this hash came before, or it does not matter.
  [[nodiscard]] bool is_new(std::uint64_t hash);

  DocumentRules rules_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<bool> held_out_;
  std::vector<std::uint64_t> hashes_;
  DocumentCounts counts_;
};

/// The documents of a stream with those that are held out behind the others.
struct SplitDocuments {
  std::vector<grid::Range> runs;  ///< the tokens of the stream, in the new order
  Documents documents;            ///< in that order
  std::int64_t train_tokens = 0;  ///< of those that are not held out
};

/// Pre: `held_out` has an element for each of the documents, or pairs of them.
[[nodiscard]] SplitDocuments split_documents(const Documents& documents,
                                             const std::vector<bool>& held_out);

}  // namespace strata::io
