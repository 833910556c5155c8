#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

#include "import/input_files.hpp"
#include "import/input_pieces.hpp"
#include "import/piece_file.hpp"

namespace strata::io {

/// Files of text or tokens.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;

  [[nodiscard]] const std::vector<std::filesystem::path>& files() const { return files_; }
  /// File names, as stored in the data set.
  [[nodiscard]] std::string description() const { return joined_file_names(files_); }
  [[nodiscard]] virtual std::int64_t vocabulary() const { return tokenizer_->vocabulary(); }
  /// The tokenizer of these tokens; null where it is not known.
  [[nodiscard]] const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

 protected:
  TokenSource(std::vector<std::filesystem::path> files, std::optional<Tokenizer> tokenizer)
      : files_(std::move(files)), tokenizer_(std::move(tokenizer)) {}

  std::vector<std::filesystem::path> files_;
  std::optional<Tokenizer> tokenizer_;
};

/// Tokens in file order, read once and sequentially in bounded memory.
class TokenStream : public TokenSource {
 public:
  /// Number of tokens.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// The number of tokens up to the end of each file.
  [[nodiscard]] const std::vector<std::int64_t>& ends() const { return ends_; }
  /// The end of each document; empty where it is not known. Valid once next() has returned false.
  [[nodiscard]] const Documents& documents() const { return documents_; }
  /// Replaces `ids` by the next ids; false at the end.
  /// Throws: Error(kData) with file and position.
  [[nodiscard]] virtual bool next(std::vector<std::uint32_t>& ids) = 0;

 protected:
  using TokenSource::TokenSource;

  std::vector<std::int64_t> ends_;
  Documents documents_;
};

/// Documents, of which any piece can be read and encoded by itself.
class DocumentSource : public TokenSource {
 public:
  /// Whether a file may be read in parts.
  [[nodiscard]] virtual CutFiles cut_files() const { return CutFiles::kBetweenLines; }
  /// Upper bound on the ids that read() gives.
  [[nodiscard]] virtual std::uint32_t largest_id() const {
    return static_cast<std::uint32_t>(vocabulary() - 1);
  }
  /// Appends the documents of a piece; `read` hears how many tokens there are.
  /// Throws: Error(kData) with file and position.
  virtual void read(const InputPiece& piece, PieceWriter& to,
                    const std::function<void(std::int64_t)>& read) = 0;
  /// The last token of each document, which the last of a split goes without; -1 for none.
  [[nodiscard]] std::int64_t separator() const { return separator_; }
  /// Where ids are characters: all of them, ascending. They become ids in this order.
  virtual void set_characters(const std::vector<std::uint32_t>& /*characters*/) {}
  /// The built-in template of dialogues; empty for others.
  [[nodiscard]] const std::string& chat_template() const { return chat_template_; }
  /// What a user should know about how the options were understood.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  /// Whether pairs are read.
  [[nodiscard]] bool pairs() const { return pairs_; }

 protected:
  using TokenSource::TokenSource;

  std::int64_t separator_ = -1;
  bool pairs_ = false;
  std::string chat_template_;
  std::vector<std::string> notes_;
};

/// The tokenizer that the options name; nothing for characters, and where they name none.
/// Throws: as the functions of Tokenizer that read files.
[[nodiscard]] std::optional<Tokenizer> given_tokenizer(const ImportOptions& options);

/// Opens the source that the options describe.
/// Throws: Error(kData) for missing or malformed files, Error(kUsage) for contradictory options.
[[nodiscard]] std::unique_ptr<DocumentSource> open_text_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<DocumentSource> open_chat_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<TokenStream> open_token_files(const ImportOptions& options);

}  // namespace strata::io
