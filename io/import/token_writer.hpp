#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "import/split_files.hpp"

namespace strata::io {

/// What a master of tokens holds besides the tokens.
struct TokenFacts {
  std::string source;
  std::int64_t vocabulary = 0;
  const Tokenizer* tokenizer = nullptr;  ///< null where the tokenizer is not known
  std::string chat_template = {};        ///< DatasetInfo::chat_template
};

/// The type that the ids of a vocabulary are stored in.
[[nodiscard]] DType token_dtype(std::int64_t vocabulary);
/// Appends ids as elements of a token_dtype(), or bytes. Pre: they fit.
void append_stored(std::span<const std::uint32_t> ids, DType dtype, std::vector<std::byte>& bytes);
/// Replaces `ids` by stored ones.
void read_stored(std::span<const std::byte> bytes, DType dtype, std::vector<std::uint32_t>& ids);

/// Writes one split of a token stream: shards as the tokens come, then the master.
class TokenSplitWriter : public SplitFiles {
 public:
  /// Pre: tokens > 0.
  TokenSplitWriter(std::filesystem::path directory, std::string split, DType dtype,
                   std::int64_t tokens, std::int64_t shard_bytes, const ImportRanks& ranks = {});

  using SplitFiles::own;
  /// Tokens are appended from this one on, with which a shard of this rank begins.
  void begin_shard(std::int64_t token) { next_ = token; }
  [[nodiscard]] std::int64_t tokens_left() const { return left() - buffered(); }

  /// Pre: every id fits the dtype, and no more come than are left, or than the shard has with which
  /// appending began.
  void append(std::span<const std::uint32_t> ids);
  /// Of the split's tokens; none where they are not known.
  void set_documents(Documents documents) { documents_ = std::move(documents); }
  /// Writes the master under its temporary name. Pre: all tokens were appended.
  void finish(const TokenFacts& facts);

 private:
  /// Writes the buffered block.
  void write_block();
  [[nodiscard]] std::int64_t buffered() const { return std::ssize(block_) / size_bytes(dtype_); }

  DType dtype_;
  std::int64_t next_ = 0;  ///< token to be written
  Documents documents_;
  std::vector<std::byte> block_;  ///< tokens not written yet, less than a whole block
};

}  // namespace strata::io
