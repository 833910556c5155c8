#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Tokens in file order, read once from beginning to end in bounded memory.
class TokenSource {
 public:
  TokenSource() = default;
  virtual ~TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;

  /// File names, as the data set remembers them.
  [[nodiscard]] virtual std::string description() const = 0;
  /// How many tokens there are; -1 where only reading tells.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// Largest id that next() may give.
  [[nodiscard]] virtual std::uint32_t largest_id() const = 0;
  /// Replaces `ids` by the next ones; false at the end.
  /// Throws: Error(kData) naming file and place.
  [[nodiscard]] virtual bool next(std::vector<std::uint32_t>& ids) = 0;

  /// The rest is known once next() has returned false, where tokens() is -1; else at once.
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  /// What turns the tokens into text; none where that is not known.
  [[nodiscard]] virtual const Tokenizer* tokenizer() const = 0;
  /// What each id that next() gave is to be replaced by; empty where ids stay.
  [[nodiscard]] virtual std::vector<std::uint32_t> renumbering() const { return {}; }
};

/// The source that the options describe.
/// Throws: Error(kData) for files that are missing or malformed, Error(kUsage) for options that
/// contradict each other.
[[nodiscard]] std::unique_ptr<TokenSource> open_text_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<TokenSource> open_token_files(const ImportOptions& options);

/// "a.txt, b.txt".
[[nodiscard]] std::string joined_file_names(const std::vector<std::filesystem::path>& files);

}  // namespace strata::io
