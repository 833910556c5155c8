#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

#include "import/document_filter.hpp"
#include "import/input_files.hpp"

namespace strata::io {

/// Tokens in file order, read once and sequentially in bounded memory.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;

  /// File names, as stored in the data set.
  [[nodiscard]] std::string description() const { return joined_file_names(files_); }
  /// Number of tokens; -1 where it is known only after reading.
  [[nodiscard]] virtual std::int64_t tokens() const { return -1; }
  /// The number of tokens up to the end of each file that was opened; of all where tokens() says
  /// how many there are.
  [[nodiscard]] const std::vector<std::int64_t>& ends() const { return ends_; }
  /// The end of each document, in tokens from the first on; empty where it is not known. Valid once
  /// next() has returned false, or from the start where tokens() says how many there are.
  [[nodiscard]] const Documents& documents() const { return documents_; }
  /// What chose them, likewise.
  [[nodiscard]] const DocumentFilter& filter() const { return filter_; }
  /// Upper bound on the ids that next() returns.
  [[nodiscard]] virtual std::uint32_t largest_id() const {
    return static_cast<std::uint32_t>(vocabulary() - 1);
  }
  /// Replaces `ids` by the next ids; false at the end.
  /// Throws: Error(kData) with file and position.
  [[nodiscard]] virtual bool next(std::vector<std::uint32_t>& ids) = 0;

  /// Where tokens() is -1, the following functions are valid only after next() has returned false.
  [[nodiscard]] virtual std::int64_t vocabulary() const { return tokenizer_->vocabulary(); }
  /// The tokenizer of these tokens; null where it is not known.
  [[nodiscard]] const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  /// Maps each id that next() returned to its final id; empty for the identity.
  [[nodiscard]] virtual std::vector<std::uint32_t> renumbering() const { return {}; }

 protected:
  TokenSource(std::vector<std::filesystem::path> files, std::optional<Tokenizer> tokenizer,
              const DocumentRules& rules = {})
      : files_(std::move(files)), tokenizer_(std::move(tokenizer)), filter_(rules) {}

  std::vector<std::filesystem::path> files_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<std::int64_t> ends_;
  Documents documents_;
  DocumentFilter filter_;
};

/// The tokenizer that the options name; nothing for characters, and where they name none.
/// Throws: as the functions of Tokenizer that read files.
[[nodiscard]] std::optional<Tokenizer> given_tokenizer(const ImportOptions& options);

/// Opens the source that the options describe.
/// Throws: Error(kData) for missing or malformed files, Error(kUsage) for contradictory options.
[[nodiscard]] std::unique_ptr<TokenSource> open_text_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<TokenSource> open_chat_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<TokenSource> open_token_files(const ImportOptions& options);

}  // namespace strata::io
