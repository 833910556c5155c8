#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/split_words.hpp"

namespace strata::io {

/// A change that a tokenizer.json makes to the text between added tokens.
struct TextChange {
  enum class Kind {
    kPrepend,         ///< puts `to` before the text
    kPrependMissing,  ///< the same where the text does not begin with it
    kPrependFirst,    ///< the same at the begin of a document alone
    kWords,           ///< the same for each word; removes the white space between words
    kReplace,         ///< `from` becomes `to`
    kReplaceMatches,  ///< each match of the expression `from` becomes `to`
    kMap,             ///< by the character map `from` of a model of SentencePiece
    kNfc,             ///< Unicode's normalization forms
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,  ///< removes marks
    kStripLeft,     ///< removes white space at the begin of the text
    kStripRight     ///< and at its end
  };
  Kind kind = Kind::kPrepend;
  std::string from;
  std::string to;
};

/// Makes changes to texts, for one thread. An empty text stays empty.
class TextChanger {
 public:
  /// Throws: Error(kData) for an expression that Expression refuses, and for a damaged map.
  explicit TextChanger(std::vector<TextChange> changes);

  /// The bytes at the begin of a text that can be changed without what follows.
  [[nodiscard]] std::size_t known_of(std::string_view text) const;
  /// The next part of a text, changed.
  [[nodiscard]] std::string changed(std::string_view part, End end);

 private:
  /// Where a text may be cut: between any characters, before white space, or nowhere.
  enum class Cut { kAnywhere, kBeforeSpace, kNowhere };
  [[nodiscard]] static Cut cut_of(const TextChange& change);
  [[nodiscard]] std::string apply(std::size_t index, std::string_view text, End end);

  std::vector<TextChange> changes_;
  Cut cut_ = Cut::kAnywhere;
  std::vector<std::unique_ptr<const Expression>> expressions_;  ///< of changes that have one
  std::vector<bool> begun_;      ///< whether a change has seen some of the text
  bool begins_document_ = true;  ///< whether no token came before the text
};

}  // namespace strata::io
