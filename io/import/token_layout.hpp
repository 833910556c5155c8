#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"
#include "strata/io/documents.hpp"

#include "import/document_filter.hpp"
#include "import/piece_file.hpp"
#include "import/split_text.hpp"

namespace strata::io {

/// Consecutive tokens of a piece.
struct TokenRun {
  std::uint64_t key = 0;  ///< of the piece
  grid::Range tokens;
};

/// Which tokens of the pieces become those of the data set, in their order.
struct TokenLayout {
  std::vector<TokenRun> runs;
  std::vector<std::uint32_t> characters;  ///< where ids are characters: all of them, ascending
  SplitCounts counts;

  /// For ranks that share a file system.
  void write(const std::filesystem::path& path) const;
  [[nodiscard]] static TokenLayout read(const std::filesystem::path& path);
};

/// Puts the documents of pieces in their order, and chooses among them.
class LayoutMaker {
 public:
  /// `separator`: whether the last document of a split goes without its last token.
  LayoutMaker(const DocumentRules& rules, bool separator, bool pairs)
      : filter_(rules), separator_(separator) {
    documents_.pairs = pairs;
  }

  /// Adds the next piece.
  void add(std::uint64_t key, PieceIndex index);
  /// What comes next is of another split.
  void end_split();
  /// The layout of what was added; with rules().held_out the documents of train come first. Of its
  /// sizes those of both splits are set, in tokens, where documents are held out.
  [[nodiscard]] TokenLayout layout();

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// In the order of the layout.
  [[nodiscard]] const Documents& documents() const { return documents_; }
  [[nodiscard]] const DocumentFilter& filter() const { return filter_; }

 private:
  void add_run(std::uint64_t key, const grid::Range& tokens);

  DocumentFilter filter_;
  bool separator_;
  Documents documents_;
  TokenLayout layout_;
  std::int64_t tokens_ = 0;
  std::int64_t split_begin_ = 0;  ///< of the split that is added to
};

/// Reads the tokens of a layout.
class LayoutReader {
 public:
  LayoutReader(const TokenLayout& layout, std::filesystem::path directory, DType dtype);

  /// Replaces `ids` by some of the tokens from `first` on, at most so many.
  void read(std::int64_t first, std::int64_t most, std::vector<std::uint32_t>& ids);

 private:
  const TokenLayout& layout_;
  std::filesystem::path directory_;
  DType dtype_;
  std::vector<std::int64_t> ends_;  ///< of each run
  std::optional<PieceReader> piece_;
  std::uint64_t open_ = 0;  ///< its key
};

}  // namespace strata::io
