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

/// Chooses, from the texts of documents in file order, which are imported, and which of these are
/// held out for the test split.
class DocumentFilter {
 public:
  explicit DocumentFilter(const DocumentRules& rules) : rules_(rules) {}

  /// Whether the next document is imported.
  [[nodiscard]] bool takes(std::string_view text);
  /// The next document was cut to rules().max_tokens.
  void count_cut() { ++cut_; }
  /// The next document has more tokens and is left out.
  void leave_out_long() {
    ++documents_;
    ++longer_;
  }
  /// Whether each of the documents that were taken is held out; empty where rules().held_out is 0.
  [[nodiscard]] const std::vector<bool>& held_out() const { return held_out_; }
  [[nodiscard]] const DocumentRules& rules() const { return rules_; }
  /// How many documents were left out or cut and why, a sentence each.
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  DocumentRules rules_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<bool> held_out_;
  std::int64_t documents_ = 0;
  std::int64_t repeated_ = 0;
  std::int64_t short_ = 0;
  std::int64_t long_ = 0;
  std::int64_t cut_ = 0;
  std::int64_t longer_ = 0;
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
