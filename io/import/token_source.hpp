#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Tokens in file order, read once and sequentially in bounded memory.
class TokenSource {
 public:
  TokenSource() = default;
  virtual ~TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;

  /// File names, as stored in the data set.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Number of tokens; -1 where it is known only after reading.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// Upper bound on the ids that next() returns.
  [[nodiscard]] virtual std::uint32_t largest_id() const = 0;
  /// Replaces `ids` by the next ids; false at the end.
  /// Throws: Error(kData) with file and position.
  [[nodiscard]] virtual bool next(std::vector<std::uint32_t>& ids) = 0;

  /// Where tokens() is -1, the following functions are valid only after next() has returned false.
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  /// The tokenizer of these tokens; null where it is not known.
  [[nodiscard]] virtual const Tokenizer* tokenizer() const = 0;
  /// Maps each id that next() returned to its final id; empty for the identity.
  [[nodiscard]] virtual std::vector<std::uint32_t> renumbering() const { return {}; }
};

/// The tokenizer that the options name; nothing for characters, and where they name none.
/// Throws: as the functions of Tokenizer that read files.
[[nodiscard]] std::optional<Tokenizer> given_tokenizer(const ImportOptions& options);

/// Opens the source that the options describe.
/// Throws: Error(kData) for missing or malformed files, Error(kUsage) for contradictory options.
[[nodiscard]] std::unique_ptr<TokenSource> open_text_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<TokenSource> open_token_files(const ImportOptions& options);

}  // namespace strata::io
